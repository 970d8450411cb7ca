"""A section that names a policy: the policy is found by its key, its options are checked, and each mistake is reported with its path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from modyn.config.base import Problem
from modyn.config.policy import check_policy, load_policy
from modyn.errors import ConfigError
from modyn.registry import Registry

SOURCE = """
from modyn.config.base import Section

class Round:
    class Config(Section):
        radius: int

class Named:
    class Config(Section):
        kind: str

class Shapeless:
    pass
"""


@pytest.fixture
def outlines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[type[Any]]:
    (tmp_path / "outlines_of_a_test.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    ids = {"Named": "outlines_of_a_test:Named", "Round": "outlines_of_a_test:Round", "Shapeless": "outlines_of_a_test:Shapeless"}
    return Registry("modyn.tests", "outline", ids, not_yet=("Square",))


@pytest.mark.parametrize(
    ("section", "path", "message"),
    [
        ({"radius": 1}, "draw.kind", "is required: the name of an outline, one of Named, Round, Shapeless"),
        ({"kind": 7}, "draw.kind", "is required: the name of an outline, one of Named, Round, Shapeless"),
        ({"kind": "Roun"}, "draw.kind", "there is no outline 'Roun', did you mean 'Round'?"),
        ({"kind": "Square"}, "draw.kind", "'Square' is not available yet; available: Named, Round, Shapeless"),
        ({"kind": "Shapeless"}, "draw.kind", "the outline outlines_of_a_test:Shapeless has no class `Config` of its options"),
        ({"kind": "Round"}, "draw.radius", "is required"),
        ({"kind": "Round", "radius": 1, "colour": 2}, "draw.colour", "there is no such key. Allowed: radius"),
    ],
)
def test_every_mistake_has_its_path(outlines: Registry[type[Any]], section: dict[str, Any], path: str, message: str) -> None:
    (problem,) = check_policy(outlines, section, "kind", "draw")
    assert problem.path == path
    assert problem.message.startswith(message)
    with pytest.raises(ConfigError) as caught:
        load_policy(outlines, section, "kind", "draw")
    assert caught.value.message == str(problem)


def test_the_key_goes_to_those_that_have_a_field_for_it(outlines: Registry[type[Any]]) -> None:
    policy, config = load_policy(outlines, {"kind": "Round", "radius": 3}, "kind", "draw")
    assert (policy.__name__, config.model_dump()) == ("Round", {"radius": 3})
    policy, config = load_policy(outlines, {"kind": "Named"}, "kind", "draw")
    assert (policy.__name__, config.model_dump()) == ("Named", {"kind": "Named"})


def test_a_policy_may_be_checked_in_its_own_way(outlines: Registry[type[Any]]) -> None:
    def check(policy: type[Any], options: Mapping[str, Any], path: str) -> list[Problem]:
        return [Problem(path, f"{policy.__name__} with {dict(options)}")]

    section = {"kind": "Round", "radius": 3}
    assert check_policy(outlines, section, "kind", "draw", check) == [Problem("draw", "Round with {'radius': 3}")]
    with pytest.raises(ConfigError, match="^draw: Round with"):
        load_policy(outlines, section, "kind", "draw", check)
