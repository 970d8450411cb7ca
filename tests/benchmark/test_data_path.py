"""Every figure of the data path runs, on few samples, and tells what it measured. Speed is not asserted: the machine may be busy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmark.data_path.__main__ import measure
from benchmark.data_path.figure import Case, Figure, Measured, Missing, Setting, Side, letters, load
from benchmark.data_path.page_cache import drop


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "letter", [letter if letter == "b" else pytest.param(letter, marks=pytest.mark.slow) for letter in letters()]
)
def test_a_figure_runs(letter: str, tmp_path: Path) -> None:
    figure = load(letter)
    lines = measure(figure, figure.smoke_samples, pairs=1, caches=[False], folder=tmp_path)
    missing = [line for line in lines if "not measured" in line]
    assert re.fullmatch(rf"{letter}: {'incomplete' if missing else '[0-9.e+]+'}", lines[-1])
    if missing:
        pytest.skip(f"ran without {len(missing)} of its cases: {'; '.join(missing)}")


class _Program:
    """A side that remembers when it ran and answers with given numbers."""

    def __init__(self, name: str, ran: list[str], values: list[float]) -> None:
        self._name, self._ran, self._values = name, ran, values
        self.side = Side(name, self.run)

    def run(self, ready: object) -> Measured:
        assert callable(ready)
        ready()
        self._ran.append(self._name)
        return Measured(self._values[min(self._ran.count(self._name) - 1, len(self._values) - 1)])


def _figure(cases: list[Case], *, more_is_better: bool = True) -> Figure:
    @contextmanager
    def prepare(_: Setting) -> Iterator[list[Case]]:
        yield cases

    return Figure("x", "test", "samples/s", 10, 10, prepare, more_is_better)


def test_sides_run_in_turn_and_a_shared_side_once_a_round() -> None:
    ran: list[str] = []
    ours, other, theirs = (_Program(name, ran, [1.0]).side for name in ("ours", "other", "theirs"))
    measure(_figure([Case("1", 1.0, ours, theirs), Case("2", 1.0, other, theirs)]), 10, pairs=2, caches=[False])
    warming, first, second = ran[:3], ran[3:6], ran[6:]
    assert warming == ["theirs", "ours", "other"]
    assert first == ["ours", "theirs", "other"]
    assert second == warming


def test_the_last_line_is_the_median_ratio_of_the_case_that_is_worst_off_against_its_target() -> None:
    ran: list[str] = []
    ours = _Program("ours", ran, [99.0, 4.0, 6.0, 5.0]).side  # the first run warms up and does not count
    cases = [
        Case("easy", 0.1, ours, 10.0),
        Case("hard", 2.0, ours, 5.0),
        Case("told only", None, ours, 1000.0),
    ]
    lines = measure(_figure(cases), 10, pairs=3, caches=[False])
    assert lines[0] == "x[easy]: 0.50 (target 0.1)"
    assert lines[1] == "x[hard]: 1.00 (target 2)"
    assert lines[-1] == "x: 1.00"


def test_a_figure_whose_other_side_is_not_there_gives_no_number() -> None:
    ours = _Program("ours", [], [1.0]).side
    cases = [Case("there", 1.0, ours, 5.0), Case("absent", 1.0, ours, Missing("it is not installed"))]
    lines = measure(_figure(cases), 10, pairs=1, caches=[False])
    assert lines[-2:] == ["x[absent]: not measured: it is not installed", "x: incomplete"]


def test_less_may_be_better() -> None:
    ours = _Program("ours", [], [2.0]).side
    assert measure(_figure([Case("memory", 1.0, ours, 8.0)], more_is_better=False), 10, pairs=1, caches=[False])[-1] == "x: 4.00"


def test_files_can_be_made_cold(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file", tmp_path / "folder" / "inner"):
        path.write_bytes(b"content")
    left = drop([tmp_path / "file", tmp_path / "folder"])
    assert 0 <= left <= 1  # some file systems live in memory
    assert (tmp_path / "folder" / "inner").read_bytes() == b"content"
