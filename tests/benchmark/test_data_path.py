"""Every figure of the data path runs on few samples and prints its measurements. Speed is not asserted, because the machine may be busy."""

from __future__ import annotations

import io
import mmap
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmark.data_path import page_cache, peers
from benchmark.data_path.__main__ import measure
from benchmark.data_path.contents import Contents
from benchmark.data_path.figure import Case, Figure, Measured, Missing, Setting, Side, letters, load
from benchmark.data_path.figure_i import WAYS
from benchmark.data_path.peers import fastest
from benchmark.data_path.resident import MIB, watching
from benchmark.data_path.selector_side import stream
from benchmark.data_path.side_process import Start

LONG = ("a", "b", "d", "j", "k")
"""Figures that take about a minute or more."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "letter",
    [
        pytest.param(
            one, marks=[pytest.mark.gpu] if one == "gpu" else pytest.mark.exhaustive if one in LONG else pytest.mark.slow
        )
        for one in letters()
    ],
)
def test_a_figure_runs(letter: str, tmp_path: Path) -> None:
    figure = load(letter)
    lines = measure(figure, figure.smoke_samples, pairs=1, caches=[False], folder=tmp_path)
    missing = [line for line in lines if "not measured" in line]
    assert re.fullmatch(rf"{letter}: {'incomplete' if missing else '[0-9.e+]+'}", lines[-1])
    if missing:
        told = f"ran without {len(missing)} of its cases: {'; '.join(missing)}"
        # `make slow` runs what can be run, `make test-all` installs the peers first: there none may be missing.
        assert "MODYN_TESTS_NO_SKIP" not in os.environ, told
        pytest.skip(told)


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
    assert warming == ["other", "theirs", "ours"]
    assert first == ["ours", "theirs", "other"]
    assert second == ["other", "theirs", "ours"]


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[list[Path]]:
    """What was made cold, where nothing is and a tenth stays in memory."""
    calls: list[list[Path]] = []

    def drop(paths: Iterable[Path]) -> float:
        calls.append(list(paths))
        return 0.1

    monkeypatch.setattr(page_cache, "drop", drop)
    return calls


def test_cold_rounds_drop_what_a_side_reads_after_its_processes_were_made_again(
    dropped: list[list[Path]], tmp_path: Path
) -> None:
    ran: list[str] = []
    ours = replace(_Program("ours", ran, [1.0]).side, fresh=lambda: ran.append("fresh"))
    theirs = replace(_Program("theirs", ran, [1.0]).side, files=[tmp_path / "own"])
    cases = [Case("cold", 1.0, ours, theirs, [tmp_path]), Case("warm only", 1.0, ours, theirs, [tmp_path], cold=False)]
    lines = measure(_figure(cases), 10, pairs=1, caches=[True])
    assert ran == ["theirs", "ours", "fresh", "ours", "theirs"]  # the first two do not count
    assert dropped == [[tmp_path], [tmp_path / "own"]]
    assert lines[0] == "x[cold, not cold, 10 % in memory]: 1.00 (target 1)"


def test_a_warm_round_before_makes_another_uncounted_one_superfluous(dropped: list[list[Path]], tmp_path: Path) -> None:
    ran: list[str] = []
    case = Case("case", 1.0, _Program("ours", ran, [1.0]).side, 1.0, [tmp_path])
    measure(_figure([case]), 10, pairs=2, caches=[False, True])
    assert len(ran) == 1 + 2 + 2
    assert len(dropped) == 2


def test_a_cold_case_may_be_the_worst_off(dropped: list[list[Path]], tmp_path: Path) -> None:
    ours = _Program("ours", [], [9.0, 9.0, 2.0]).side  # uncounted, warm, cold
    lines = measure(_figure([Case("case", 1.0, ours, 4.0, [tmp_path])]), 10, pairs=1, caches=[False, True])
    assert lines[-2:] == ["least against its target: case, not cold, 10 % in memory", "x: 0.50"]


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


def test_some_cases_only() -> None:
    ours = _Program("ours", [], [9.0, 4.0, 4.0]).side
    cases = [Case("easy", 0.1, ours, 10.0), Case("hard", 2.0, ours, 5.0)]
    assert measure(_figure(cases), 10, pairs=1, caches=[False], only="eas") == [
        "x[easy]: 0.40 (target 0.1)",
        "least against its target: easy, warm",
        "x: 0.40",
    ]
    with pytest.raises(SystemExit, match=r"no case of figure x .*'other'(.|\n)*easy\nhard"):
        measure(_figure(cases), 10, pairs=1, caches=[False], only="other")


def test_a_figure_whose_other_side_is_not_there_gives_no_number() -> None:
    ours = _Program("ours", [], [1.0]).side
    cases = [Case("there", 1.0, ours, 5.0), Case("absent", 1.0, ours, Missing("it is not installed"))]
    lines = measure(_figure(cases), 10, pairs=1, caches=[False])
    assert lines[-2:] == ["x[absent]: not measured: it is not installed", "x: incomplete"]


def test_less_may_be_better() -> None:
    ours = _Program("ours", [], [2.0]).side
    assert measure(_figure([Case("memory", 1.0, ours, 8.0)], more_is_better=False), 10, pairs=1, caches=[False])[-1] == "x: 4.00"


def test_files_can_be_made_cold_unless_they_are_mapped(tmp_path: Path) -> None:
    # Without the right to drop the page cache of the whole machine, on which other programs measure.
    switch = tmp_path / "absent"
    kind = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=True).stdout.strip()
    if kind in ("tmpfs", "ramfs", "overlayfs"):
        pytest.skip(f"files on {kind} do not leave memory, or not by this way")
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder" / "inner"
    path.write_bytes(bytes(mmap.PAGESIZE * 4))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[:: mmap.PAGESIZE]) == 0
        (tmp_path / "other").write_bytes(b"content")
        assert page_cache.drop([tmp_path / "folder", tmp_path / "other"], switch) == 1.0
    assert page_cache.drop([tmp_path / "folder", tmp_path / "other"], switch) == 0.0
    assert path.read_bytes() == bytes(mmap.PAGESIZE * 4)


def test_the_machines_page_cache_is_dropped_again_after_looking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the state of files brings their names and inodes back into the cache."""
    switch, written = tmp_path / "switch", []
    switch.touch()

    def look(_: Iterable[Path]) -> float:
        written.append(switch.read_text())
        switch.write_text("")
        return 0.0

    monkeypatch.setattr(page_cache, "_resident", look)
    page_cache.drop([tmp_path / "data"], switch)
    assert [*written, switch.read_text()] == ["3", "3"]


def _records(numbers: list[int], labels: list[int] | None = None) -> list[torch.Tensor]:
    return [torch.tensor([[number, 0.5] for number in numbers]), torch.tensor(labels or [number % 2 for number in numbers])]


@pytest.mark.parametrize(
    ("batch", "wrong"),
    [
        (_records([*range(1, 30), 0]), None),
        (_records([*range(29), 28]), "each once"),
        (_records([*range(1, 30), 0], [0] * 30), "labels"),
        (_records([*range(30)]), "stored order"),
    ],
)
def test_the_samples_that_came_are_looked_at(batch: list[torch.Tensor], wrong: str | None) -> None:
    contents = Contents()
    contents.add([part[:10] for part in batch])
    contents.add([part[10:] for part in batch])
    with pytest.raises(RuntimeError, match=wrong) if wrong else nullcontext():
        contents.check(30, shuffled=True)


def test_images_are_known_by_their_labels() -> None:
    contents = Contents()
    contents.add([torch.zeros(30, 2, 2, 3, dtype=torch.uint8), torch.arange(30) % 9])
    with pytest.raises(RuntimeError, match="each once"):
        contents.check(30, shuffled=False)


def test_memory_of_worker_processes_counts_from_when_they_are_first_seen() -> None:
    program = "import sys; sys.stdin.readline(); held = bytearray(50 << 20); print(len(held), flush=True); sys.stdin.readline()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        with watching(os.getpid()) as memory:
            assert worker.pid in memory.before
            worker.stdin.write("\n")
            worker.stdin.flush()
            worker.stdout.readline()
            memory.look(os.getpid())
            worker.stdin.write("\n")
    assert memory.grown > 45 * MIB


def test_the_fastest_way_is_found_after_its_workers_have_started(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(peers, "perf_counter", lambda: now)

    def way(start_s: float, batch_s: float) -> Iterator[int]:
        nonlocal now
        now += start_s
        for batch in range(7):
            now += batch_s
            yield batch

    ways: dict[str, Start] = {"at once, slow": lambda: way(0.0, 0.02), "later, fast": lambda: way(0.5, 0.0)}
    assert fastest(ways, num_batches=3) == "later, fast"
    assert fastest(ways, num_batches=None) == "at once, slow"


def test_both_ways_of_copying_bring_the_same_rows() -> None:
    samples = stream(150_000, "random")
    plain, ahead = (b"".join(_rows(data) for data in way(samples)) for way in WAYS.values())
    assert len(plain) == 150_000 * 50
    assert plain == ahead


def _rows(data: io.IOBase) -> bytes:
    content = io.BufferedReader(data).read() if isinstance(data, io.RawIOBase) else data.read()
    assert content.startswith(b"PGCOPY")
    return bytes(content[19:-2])
