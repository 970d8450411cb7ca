"""Tables for people, JSON and tab-separated lines for programs."""

from __future__ import annotations

import enum
import json
import math
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
import pytest

from modyn.cli.views.output import clock, date, day, number, print_fields, print_json, print_table, size
from modyn.config.dataset import DatasetConfig
from modyn.records import Interval


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Thing:
    name: str
    where: Path
    interval: Interval
    colours: tuple[Colour, ...]
    value: float


def printed(value: object, capsys: pytest.CaptureFixture[str]) -> object:
    print_json(value)
    return json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


THING = Thing("ü", Path("/a"), Interval(1, 2), (Colour.RED,), math.nan)
NUMBERS = {"i": np.int64(2**62), "f": np.float32(0.5), "b": np.bool_(True), "a": np.arange(3), 7: "key"}
TABLE = pd.DataFrame({"n": pd.array([1, pd.NA], dtype="Int64"), "x": [0.5, math.nan], "t": ["a", None]})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([THING], [{"name": "ü", "where": "/a", "interval": {"start": 1, "end": 2}, "colours": ["red"], "value": None}]),
        ([math.inf, -math.inf, np.float32("nan"), pd.NA, pd.NaT, None], [None] * 6),
        (NUMBERS, {"i": 2**62, "f": 0.5, "b": True, "a": [0, 1, 2], "7": "key"}),
        ([MappingProxyType({"a": {"n": np.int64(1)}})], [{"a": {"n": 1}}]),
        (TABLE, [{"n": 1, "x": 0.5, "t": "a"}, {"n": None, "x": None, "t": None}]),
        (TABLE.iloc[:0], []),
    ],
    ids=["record", "numbers that JSON lacks", "numbers of NumPy", "mapping", "table", "empty table"],
)
def test_values_become_json(value: object, expected: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(value, capsys) == expected


def test_sections_become_objects(capsys: pytest.CaptureFixture[str]) -> None:
    config = DatasetConfig(name="d", base_path=Path("/d"), file_wrapper="F")
    shown = printed(config, capsys)
    assert isinstance(shown, dict)
    assert (shown["name"], shown["base_path"]) == ("d", "/d")


def test_a_piped_table_is_tab_separated_and_keeps_a_row_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "n"], [["a\tb\nc", 1_000_000], ["", None], ["x", 0.5]])
    assert capsys.readouterr().out == "name\tn\na b c\t1,000,000\n\t–\nx\t0.5000\n"


def test_piped_tables_have_their_titles_above(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["a"], [["1"]], title="First")
    assert capsys.readouterr().out == "\n# First\na\n1\n"
    print_table(["a"], [], title="One of several, and empty")
    assert capsys.readouterr().out == ""
    print_table(["a"], [])
    assert capsys.readouterr().out == "a\n"


def test_an_empty_table_on_a_terminal_says_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_table(["a"], [], empty="nothing yet; do this")
    assert capsys.readouterr().out == "nothing yet; do this\n"
    print_table(["a"], [["[red]1[/red]"]])
    assert "[red]1[/red]" in capsys.readouterr().out


def test_fields_stand_one_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields({"a": 1000, "long": None})
    assert capsys.readouterr().out == "a     1,000\nlong  –\n"


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (0, "1970-01-01 00:00:00"),
        (-1, "1969-12-31 23:59:59"),
        (None, "–"),
        (2**63 - 1, str(2**63 - 1)),
        (-(2**63), str(-(2**63))),
    ],
)
def test_stream_times_are_dates_as_far_as_the_calendar_goes(timestamp: int | None, expected: str) -> None:
    assert date(timestamp) == expected
    if timestamp is not None:
        assert day(timestamp) == expected.split(" ", maxsplit=1)[0]


def test_numbers_of_things_have_no_commas() -> None:
    assert [number(value) for value in (0, 12345, None, pd.NA, math.nan)] == ["0", "12345", "–", "–", "–"]


def test_moments_and_sizes() -> None:
    assert clock(None) == clock(0) == "–"
    assert clock(1e9).startswith("2001-09-0")
    assert [size(n) for n in (0, 1023, 1024, 1536, 2**20, 2**30, 2**50)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "1.0 GiB", "1024.0 TiB",
    ]  # fmt: skip


def test_control_characters_are_written_as_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["file"], [["a\x1b[2Jb\x07"], [Path("c\x1b")]])
    print_fields({"name": "d\x1b]0;title\x07"})
    shown = capsys.readouterr().out
    assert not {"\x1b", "\x07"} & set(shown)
    assert "a\\x1b[2Jb\\x07" in shown
    assert "d\\x1b]0;title\\x07" in shown
