"""The log of a run's samples: one flipped bit or a cut is found where it is read, and time windows are found by the entries of groups."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import CorruptStateError
from modyn.records import Interval, RunId, SampleBatch
from modyn.selector.sample_log import BLOCK, GROUP, SampleLog

HEAD, ENTRIES = 12_288, 4_096
"""Bytes before the first block, and bytes of a block before its columns."""


def stream(start: int, end: int) -> SampleBatch:
    positions = np.arange(start, end)
    return SampleBatch(positions * 3 + 1, positions - 50, positions % 10)


def make_log(folder: Path, times: list[int] | None = None, steps: tuple[int, ...] = (BLOCK + GROUP + 100,)) -> SampleLog:
    log = SampleLog(RunId("run-1"), folder / "run-1.1")
    log.create()
    position = 0
    for step in steps:
        batch = stream(position, position + step)
        if times is not None:
            batch = SampleBatch(batch.keys, np.asarray(times[position : position + step], np.int64), batch.labels)
        log.append(position, batch)
        position += step
    return log


def flip(path: Path, at: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("column", "row", "says"),
    [
        (0, 0, "the keys of samples 0 to 4095"),
        (0, 5000, "the keys of samples 4096 to 8191"),
        (1, BLOCK - 1, "the timestamps of samples 61440 to 65535"),
        (2, 9000, "the labels of samples 8192 to 12287"),
        (0, BLOCK + GROUP + 99, "the keys of samples 69632 to 69731"),
        (2, BLOCK + GROUP + 3, "the labels of samples 69632 to 69731"),
    ],
)
@pytest.mark.parametrize("bit", [0, 7])
def test_a_flipped_bit_is_found_and_named_with_file_and_position(
    tmp_path: Path, column: int, row: int, says: str, bit: int
) -> None:
    log = make_log(tmp_path, steps=(10, GROUP, BLOCK - 10, 100))
    assert log.read(row, row + 1).keys.tolist() == [row * 3 + 1]
    block, within = divmod(row, BLOCK)
    flip(log.path, HEAD + block * (ENTRIES + 24 * BLOCK) + ENTRIES + 8 * (column * BLOCK + within), bit)
    with pytest.raises(CorruptStateError, match=f"{re.escape(str(log.path))} is damaged: {says} do not match"):
        log.read(0, log.state().num_samples)
    if column == 0:
        with pytest.raises(CorruptStateError, match=says):
            log.read_keys(row, row + 1)
        with pytest.raises(CorruptStateError, match=says):
            log.append(row, stream(row, row + 1))
    far = 40_000
    assert log.read(far, far + 10).keys.tolist() == stream(far, far + 10).keys.tolist()


def test_damaged_checksums_are_named(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    flip(log.path, HEAD + 33)
    with pytest.raises(CorruptStateError, match="the checksums of samples 4096 to 8191 do not match"):
        log.read_keys(5000, 5001)
    assert log.read_keys(0, 1).tolist() == [1]


@pytest.mark.parametrize("size", [0, 5, 12_000, HEAD, HEAD + 10, HEAD + ENTRIES + 8 * BLOCK, HEAD + ENTRIES + 24 * BLOCK])
def test_a_cut_log_is_found(tmp_path: Path, size: int) -> None:
    log = make_log(tmp_path)
    with open(log.path, "r+b") as file:
        file.truncate(size)
    with pytest.raises(CorruptStateError, match=re.escape(str(log.path))):
        log.read(0, BLOCK + GROUP + 100)


@given(steps=st.lists(st.sampled_from([1, 7, GROUP - 1, GROUP, GROUP + 1, 3 * GROUP]), min_size=1, max_size=8), data=st.data())
def test_what_was_appended_in_any_steps_is_read_in_any_ranges(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], data: st.DataObject
) -> None:
    log = make_log(tmp_path_factory.mktemp("log"), steps=tuple(steps))
    total = sum(steps)
    start = data.draw(st.integers(0, total))
    end = data.draw(st.integers(start, total))
    found, expected = log.read(start, end), stream(start, end)
    for column in ("keys", "timestamps", "labels"):
        np.testing.assert_array_equal(getattr(found, column), getattr(expected, column))


@given(data=st.data())
def test_time_windows_are_the_ranges_that_a_look_at_every_sample_finds(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Of times that ascend, are equal, or come late."""
    seed, spread = data.draw(st.integers(0, 99)), data.draw(st.sampled_from([0, 3, 5000]))
    size = data.draw(st.sampled_from([0, 1, GROUP, 2 * GROUP + 5]))
    late = np.random.default_rng(seed).integers(0, spread + 1, size)
    times = np.arange(size) // 7 - late
    log = make_log(tmp_path_factory.mktemp("log"), times.tolist(), steps=(size // 2, size - size // 2))
    interval = Interval(data.draw(st.integers(-10, 1300)), data.draw(st.integers(-10, 1300)))
    ranges = list(log.ranges_in(interval))
    inside = (times >= interval.start) & (times < interval.end)
    assert [position for start, end in ranges for position in range(start, end)] == np.flatnonzero(inside).tolist()
    assert all(start < end for start, end in ranges)
    assert all(end < start for (_, end), (start, _) in pairwise(ranges))


def test_a_time_window_is_found_without_reading_the_times_outside_its_edges(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    for row in (0, 3 * GROUP, BLOCK - 1):  # far before the window, inside it, far behind it
        flip(log.path, HEAD + ENTRIES + 8 * (BLOCK + row))
    window = Interval(GROUP + 5 - 50, 7 * GROUP + 9 - 50)
    assert list(log.ranges_in(window)) == [(GROUP + 5, 7 * GROUP + 9)]
    with pytest.raises(CorruptStateError, match="the timestamps of samples 0 to 4095"):
        list(log.ranges_in(Interval(-10, window.end)))
