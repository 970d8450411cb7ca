"""Files of feedback are complete or absent, however their writer is cut off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from modyn.errors import CorruptStateError, UnavailableError
from modyn.records import FeedbackHeader, FeedbackRows, RunId
from modyn.selector.window import FeedbackFiles

RUN = RunId("r-1")


def rows(*keys: int, epoch: int = 0) -> FeedbackRows:
    values = np.array(keys, np.float32)[:, None]
    return FeedbackRows(np.array(keys), np.full(len(keys), epoch, np.int32), {"loss": values})


def header(num_rows: int, attempt: int = 1) -> FeedbackHeader:
    return FeedbackHeader(RUN, 0, "abc", attempt, num_rows, {"loss": 1})


@pytest.fixture
def files(tmp_path: Path) -> FeedbackFiles:
    return FeedbackFiles(tmp_path / "feedback", RUN)


def held(files: FeedbackFiles) -> list[int]:
    found = files.find(0)
    assert found is not None
    return [key for part in found.chunks() for key in part.keys.tolist()]


def test_a_stream_that_is_cut_leaves_what_was_there(files: FeedbackFiles, tmp_path: Path) -> None:
    def cut() -> Iterator[tuple[int, FeedbackRows]]:
        yield 0, rows(7, 8)
        raise UnavailableError("the trainer has gone")

    with pytest.raises(UnavailableError):
        files.put(header(4), cut())
    assert files.find(0) is None
    files.put(header(2), [(0, rows(1, 2))])
    with pytest.raises(UnavailableError):
        files.put(header(4, attempt=2), cut())
    assert held(files) == [1, 2]
    assert [path.name for path in (tmp_path / "feedback").iterdir()] == ["000000.feedback"]


def test_what_a_killed_selector_was_writing_is_removed_at_its_start(files: FeedbackFiles, tmp_path: Path) -> None:
    files.put(header(2), [(0, rows(1, 2))])
    left = tmp_path / "feedback" / "000001.feedback.99-1.tmp"
    left.write_bytes(b"half")
    files.repair()
    assert not left.exists()
    assert held(files) == [1, 2]


def test_a_damaged_file_is_found_and_replaced_by_what_is_sent_again(files: FeedbackFiles, tmp_path: Path) -> None:
    files.put(header(2), [(0, rows(1, 2))])
    path = tmp_path / "feedback" / "000000.feedback"
    content = bytearray(path.read_bytes())
    content[64] ^= 1
    path.unlink()
    path.write_bytes(content)
    with pytest.raises(CorruptStateError, match=r"000000\.feedback"):
        files.find(0)
    files.put(header(2), [(0, rows(1, 2))])
    assert held(files) == [1, 2]


def test_the_last_epoch_has_each_sample_once(files: FeedbackFiles) -> None:
    files.put(header(5), [(0, rows(1, 2)), (2, rows(2, 1, 3, epoch=1))])
    found = files.find(0)
    assert found is not None
    assert [key for part in found.last_epoch() for key in part.keys.tolist()] == [2, 1, 3]


def test_a_run_that_was_deleted_meanwhile_gets_no_folder_back(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        FeedbackFiles(tmp_path / "gone" / "feedback", RUN).put(header(0), [])
    assert not (tmp_path / "gone").exists()
