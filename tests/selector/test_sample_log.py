"""The log of a run's samples: one flipped bit or a cut is found where it is read, and time windows are found by the entries of groups."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import CorruptStateError
from modyn.records import RunId, SampleBatch
from modyn.selector.sample_log import BLOCK, GROUP, SampleLog
from tests.support.selecting import stream

HEAD, ENTRIES = 12_288, 4_096
"""Bytes before the first block, and bytes of a block before its columns."""


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
    flip(log.path, HEAD + 17)
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
