"""Messages for mistakes in a section name the path, the mistake and the allowed values."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import pytest
from pydantic import Field, ValidationError, field_validator, model_validator

from modyn.config.base import Matching, PlacedError, Problem, Section, Severity, check_section, load_section, refuse
from modyn.errors import ConfigError


class Circle(Section):
    kind: Literal["circle"]
    radius: float = Field(gt=0)


class Square(Section):
    kind: Literal["square"]
    side_length: float = Field(gt=0)


class Drawing(Section):
    title: str = Field("untitled", max_length=20)
    shapes: list[Annotated[Circle | Square, Field(discriminator="kind")]] = Field(default_factory=list)
    frame: Square | None = None
    line_width: int = Field(1, ge=1, le=10, alias="width")

    @field_validator("title")
    @classmethod
    def _says_something(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("a drawing needs a title; give it a word")
        return value


def problem(data: object) -> Problem:
    (found,) = check_section(Drawing, data, "drawing")
    return found


def test_a_correct_section_has_no_problems_and_cannot_be_changed() -> None:
    data = {"title": "a", "shapes": [{"kind": "circle", "radius": 1}], "width": 3}
    assert check_section(Drawing, data, "drawing") == []
    drawing = load_section(Drawing, data)
    with pytest.raises(ValidationError, match="frozen"):
        drawing.title = "b"  # type: ignore[misc]


def test_an_unknown_key_names_the_nearest_one_and_all_that_are_allowed() -> None:
    found = problem({"titel": "a"})
    assert found.path == "drawing.titel"
    assert found.message == "there is no such key, did you mean 'title'? Allowed: frame, shapes, title, width"


def test_an_unknown_key_that_resembles_none_lists_them() -> None:
    assert problem({"zzz": 1}).message == "there is no such key. Allowed: frame, shapes, title, width"


def test_keys_are_known_below_lists_unions_and_options() -> None:
    found = problem({"shapes": [{"kind": "circle", "radius": 1}, {"kind": "square", "side_length": 1, "side_lenght": 1}]})
    assert found.path == "drawing.shapes.1.side_lenght", "as it stands in the file: the kind is not a key"
    assert found.message == "there is no such key, did you mean 'side_length'? Allowed: kind, side_length"
    found = problem({"frame": {"kind": "square", "side_length": 1, "sid": 2}})
    assert found.message.endswith("Allowed: kind, side_length")
    assert found.path == "drawing.frame.sid"


@pytest.mark.parametrize(
    ("shape", "path", "message"),
    [
        ({"kind": "circel", "radius": 1}, ".kind", "there is no 'circel', did you mean 'circle'? Allowed: circle, square"),
        ({"radius": 1}, ".kind", "is required: one of circle, square"),
        ("circle", "", "'circle' is wrong: a mapping is expected, with the key 'kind', one of circle, square"),
        ({"kind": "circle"}, ".radius", "is required"),
    ],
)
def test_an_unknown_kind_of_a_union_lists_the_kinds(shape: object, path: str, message: str) -> None:
    assert problem({"shapes": [shape]}) == Problem(f"drawing.shapes.0{path}", message)


def test_a_name_that_is_also_a_kind_stays_in_the_path() -> None:
    class Gallery(Section):
        drawings: dict[str, Annotated[Circle | Square, Field(discriminator="kind")]]

    (found,) = check_section(Gallery, {"drawings": {"circle": {"kind": "circle", "radius": 0}}}, "")
    assert found.path == "drawings.circle.radius"


def test_a_mistake_of_several_keys_names_the_one_to_change() -> None:
    class Frame(Section):
        inner: int
        outer: int

        @model_validator(mode="after")
        def _fits(self) -> Self:
            if self.inner > self.outer:
                raise PlacedError("inner", "is larger than outer")
            return self

    (found,) = check_section(Frame, {"inner": 2, "outer": 1}, "drawing.frame")
    assert found == Problem("drawing.frame.inner", "is larger than outer")


def test_a_wrong_name_in_a_mapping_stands_at_its_own_place() -> None:
    class Named(Section):
        shapes: dict[Annotated[str, Matching("[a-z]+", "a name has the letters a to z")], int]

    (found,) = check_section(Named, {"shapes": {"A1": 1}}, "drawing")
    assert found == Problem("drawing.shapes.A1", "'A1' is wrong: a name has the letters a to z")


def test_a_missing_key_says_so() -> None:
    assert problem({"frame": {"kind": "square"}}) == Problem("drawing.frame.side_length", "is required")


def test_wrong_type_and_out_of_range_show_the_value_and_the_bound() -> None:
    assert problem({"width": "wide"}).message.startswith("'wide' is wrong: input should be a valid integer")
    found = problem({"width": 11})
    assert (found.path, found.message) == ("drawing.width", "11 is wrong: input should be less than or equal to 10")


def test_a_rule_of_our_own_speaks_for_itself() -> None:
    assert problem({"title": " "}).message == "a drawing needs a title; give it a word"


def test_a_pattern_is_explained_in_words() -> None:
    class Named(Section):
        name: Annotated[str, Matching(r"^[a-z]+$", "a name has the letters a to z")]

    assert check_section(Named, {"name": "abc"}, "") == []
    for wrong in ("A1", "abc\n"):
        (found,) = check_section(Named, {"name": wrong}, "")
        assert found == Problem("name", f"{wrong!r} is wrong: a name has the letters a to z")
    assert Named.model_json_schema()["properties"]["name"]["pattern"] == r"^[a-z]+$"


def test_a_long_value_is_cut() -> None:
    assert len(problem({"width": "x" * 1000}).message) < 200


def test_every_mistake_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_section(Drawing, {"width": 0, "titel": 1, "frame": {}}, "drawing")
    lines = caught.value.message.splitlines()
    assert sorted(line.split(":")[0] for line in lines) == [
        "drawing.frame.kind",
        "drawing.frame.side_length",
        "drawing.titel",
        "drawing.width",
    ]


def test_without_a_prefix_the_path_starts_at_the_root() -> None:
    with pytest.raises(ConfigError, match=r"^width: 0 is wrong"):
        load_section(Drawing, {"width": 0})
    assert str(Problem("", "the whole is wrong")) == "the whole is wrong"


def test_a_value_that_is_not_a_mapping_is_a_problem_too() -> None:
    assert problem(7).path == "drawing"


class Counted(Section):
    flag: bool = False
    number: int = 1
    maybe: float | None = None
    either: int | bool = 1
    many: list[int] = Field(default_factory=list)
    anything: dict[str, object] = Field(default_factory=dict)
    shares: dict[str, list[float]] = Field(default_factory=dict)
    inner: Square | None = None
    level: Literal[1, 2] = 1
    word: str = ""


@pytest.mark.parametrize(
    ("data", "path", "message"),
    [
        ({"number": True}, "counts.number", "true is a boolean; a whole number is expected"),
        ({"maybe": False}, "counts.maybe", "false is a boolean; a number is expected"),
        ({"many": [1, True]}, "counts.many.1", "true is a boolean; a whole number is expected"),
        (
            {"inner": {"kind": "square", "side_length": True}},
            "counts.inner.side_length",
            "true is a boolean; a number is expected",
        ),
        ({"shares": {"a": [0.5], "b": [True]}}, "counts.shares.b.0", "true is a boolean; a number is expected"),
        ({"level": True}, "counts.level", "true is a boolean; 1 or 2 is expected"),
        ({"word": True}, "counts.word", "true is a boolean; text in quotes is expected"),
        ({"many": True}, "counts.many", "true is a boolean; a list is expected"),
        ({"anything": False}, "counts.anything", "false is a boolean; a mapping is expected"),
        ({"inner": False}, "counts.inner", "false is a boolean; a mapping is expected"),
        (
            {"number": "true"},
            "counts.number",
            "'true' is wrong: input should be a valid integer, unable to parse string as an integer",
        ),
    ],
)
def test_true_and_false_are_not_numbers(data: object, path: str, message: str) -> None:
    assert check_section(Counted, data, "counts") == [Problem(path, message)]


def test_true_and_false_stay_where_they_may_stand() -> None:
    assert check_section(Counted, {"flag": True, "either": True, "anything": {"deep": [True]}}, "counts") == []


def test_a_warning_is_listed_and_refuses_nothing() -> None:
    warning = Problem("a.b", "is odd", Severity.WARNING)
    assert str(warning) == "warning: a.b: is odd"
    refuse([warning])
    with pytest.raises(ConfigError) as caught:
        refuse([warning, Problem("a.c", "is wrong")])
    assert caught.value.message == "a.c: is wrong"
