"""What the bindings of the core add to it: types, indices, ownership, threads."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from modyn import _core
from modyn.errors import InvalidArgumentError


def test_files_that_were_removed_or_replaced_are_let_go(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("stays", "removed", "replaced")]
    for path in paths:
        path.write_bytes(b"content")
    gatherer = _core.Gatherer()
    table = _core.PathTable(tmp_path)
    table.append([path.name for path in paths])
    gatherer.gather(table, np.arange(3, dtype=np.uint32), np.zeros(3, np.int64), 7)
    assert gatherer.forget_removed() == 0
    paths[1].unlink()
    (tmp_path / "new").write_bytes(b"another")
    os.replace(tmp_path / "new", paths[2])
    assert gatherer.forget_removed() == 2
    assert gatherer.num_open_files == 1
    with pytest.raises(_core.FileVanishedError):
        gatherer.gather(table, np.ones(1, np.uint32), np.zeros(1, np.int64), 7)


def test_no_file_has_a_negative_id() -> None:
    table = _core.PathTable("")
    table.append(["a"])
    for outside in (-1, 1):
        with pytest.raises(IndexError):
            table.stamp(outside)
        with pytest.raises(IndexError):
            table.may_be(outside, 0, 0)


def test_what_is_not_aligned_is_copied() -> None:
    ends = np.frombuffer(b"?" + np.array([1, 3], np.int64).tobytes(), np.uint8)[1:].view(np.int64)
    assert not ends.flags.aligned
    before = sys.getrefcount(ends)
    table = _core.PathTable("")
    table.append_packed(np.frombuffer(b"abc", np.uint8), ends)
    assert sys.getrefcount(ends) == before
    assert [table[0], table[1]] == ["a", "bc"]


def test_nothing_has_no_runs() -> None:
    runs = _core.find_runs(np.empty(0, np.int64), 0)
    assert runs is not None
    assert [len(column) for column in runs] == [0, 0, 0]
    assert _core.find_runs(np.zeros(1, np.int64), 0) is None


def test_a_chunk_without_keys_is_no_set() -> None:
    with pytest.raises(InvalidArgumentError, match="without keys"):
        _core.KeySet.parsed(bytes(12 + 65_536 // 8))


def test_a_named_pipe_is_no_file_to_map_and_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(_core.FileAccessError, match="pipe"):
        _core.map_file(pipe)
