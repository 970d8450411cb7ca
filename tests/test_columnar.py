"""Files of columns and heads of logs: what was written is read, and every damage is found."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from modyn.columnar import ColumnFile, FileKind, LogHead, column_writer, write_columns
from modyn.errors import CorruptStateError, NotFoundError, UnavailableError
from tests.support.disk_recorder import recorded_disk

KIND = FileKind(b"MODYNTST", 7, "file of tests", "write it again")
COLUMNS: dict[str, npt.NDArray[Any]] = {
    "keys": np.arange(100, dtype=np.int64),
    "weights": np.linspace(0, 1, 100, dtype=np.float32),
    "outputs": np.arange(60, dtype=">u2").reshape(3, 4, 5).transpose(2, 0, 1),
    "flags": np.array([True, False]),
    "none": np.zeros((0, 3)),
    "one": np.full((), 3.5),
}


def test_columns_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = write_columns(tmp_path / "a", KIND, COLUMNS, {"model": 3, "names": ["x"]})
    assert written.num_bytes == os.path.getsize(tmp_path / "a")
    assert os.listdir(tmp_path) == ["a"]
    file = ColumnFile.open(tmp_path / "a", KIND)
    assert (file.meta, file.written) == ({"model": 3, "names": ["x"]}, written)
    file.verify()
    (tmp_path / "a").unlink()
    found = {name: file.column(name) for name in COLUMNS}
    assert "keys" in file
    assert "others" not in file
    del file
    gc.collect()
    for name, values in COLUMNS.items():
        assert np.array_equal(found[name], values)
        assert found[name].dtype == values.dtype.newbyteorder("<")
        assert not found[name].flags.writeable
        assert found[name].ctypes.data % values.dtype.itemsize == 0


def test_columns_written_in_parts_make_the_same_file(tmp_path: Path) -> None:
    plain = {name: COLUMNS[name] for name in ("keys", "weights")}
    write_columns(tmp_path / "a", KIND, plain, {"n": 1})
    with column_writer(tmp_path / "b", KIND, {"keys": (np.int64, 100), "weights": (np.float32, 100)}) as writer:
        for start in range(0, 100, 30):
            writer.append("weights", plain["weights"][start : start + 30].astype(np.float64))
            writer.append("keys", plain["keys"][start : start + 30])
        assert not (tmp_path / "b").exists()
        writer.meta["n"] = 1
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()


@pytest.mark.parametrize(("given", "message"), [(4, "fewer values"), (6, "more values")])
def test_columns_of_another_length_than_announced_leave_no_file(tmp_path: Path, given: int, message: str) -> None:
    with pytest.raises(ValueError, match=message), column_writer(tmp_path / "a", KIND, {"keys": (np.int64, 5)}) as writer:
        writer.append("keys", np.arange(given))
    assert os.listdir(tmp_path) == []


def test_a_disk_that_refuses_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, content: memoryview, position: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with (
        pytest.raises(UnavailableError, match="cannot write the file of tests .*/a: No space left on device"),
        column_writer(tmp_path / "a", KIND, {"keys": (np.int64, 5)}) as writer,
    ):
        writer.append("keys", np.arange(5))
    assert os.listdir(tmp_path) == []


def test_every_flipped_bit_and_every_cut_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_columns(path, KIND, {"keys": np.arange(16), "flags": np.ones(64, np.bool_)}, {"model": 3})
    content = path.read_bytes()
    for position in range(len(content)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :])
        with pytest.raises(CorruptStateError, match="write it again"):
            ColumnFile.open(path, KIND).verify()
        path.write_bytes(content[:position])
        with pytest.raises(CorruptStateError, match="write it again"):
            ColumnFile.open(path, KIND)


def test_files_of_another_kind_or_version_are_refused(tmp_path: Path) -> None:
    write_columns(tmp_path / "a", KIND, {})
    with pytest.raises(CorruptStateError, match="/a is not a segment; restore it"):
        ColumnFile.open(tmp_path / "a", FileKind(b"MODYNSEG", 7, "segment", "restore it"))
    with pytest.raises(
        CorruptStateError, match="has version 7, this Modyn reads version 8; use the Modyn that wrote it, or write"
    ):
        ColumnFile.open(tmp_path / "a", FileKind(KIND.magic, 8, KIND.noun, KIND.advice))
    with pytest.raises(NotFoundError, match="/b is missing"):
        ColumnFile.open(tmp_path / "b", KIND)
    with pytest.raises(ValueError, match="only numbers"):
        write_columns(tmp_path / "b", KIND, {"texts": np.array(["x"])})


@pytest.mark.parametrize("slots", [(12,), (4096, 8192)])
def test_a_log_counts_what_was_committed_last(tmp_path: Path, slots: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    head, path = LogHead(KIND, 2, slots), tmp_path / "log"
    path.write_bytes(head.initial(5, -6))
    state = head.parse(path, path.read_bytes())
    assert state.fields == (5, -6)

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with open(path, "r+b") as file:
        for number in range(5):
            state = head.commit(file.fileno(), state, number, 2 * number)
            assert head.parse(path, path.read_bytes()) == state
            with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output"):
                patch.setattr(os, "fdatasync", broken)
                head.commit(file.fileno(), state, 77, 77)
            assert head.parse(path, path.read_bytes()).fields == (number, 2 * number)
    for size in (0, 8, head.size - 1):
        with pytest.raises(CorruptStateError, match="write it again"):
            head.parse(path, path.read_bytes()[:size])


def test_a_torn_commit_leaves_the_one_before_it_where_there_are_two_slots(tmp_path: Path) -> None:
    head, path = LogHead(KIND, 1, (4096, 8192)), tmp_path / "log"
    path.write_bytes(head.initial())
    with open(path, "r+b") as file:
        state = head.parse(path, path.read_bytes())
        assert (state.number, state.fields) == (0, (0,))
        for number in (1, 2):
            state = head.commit(file.fileno(), state, number)
    content = bytearray(path.read_bytes())
    content[4096 + 8] ^= 1
    assert head.parse(path, bytes(content)).fields == (1,)
    content[8192 + 8] ^= 1
    with pytest.raises(CorruptStateError, match="no longer says how many"):
        head.parse(path, bytes(content))


def test_after_a_power_loss_a_file_of_columns_is_whole_or_not_there(tmp_path: Path) -> None:
    with recorded_disk(tmp_path) as disk:
        for number in range(2):
            write_columns(tmp_path / "a", KIND, {"keys": np.arange(200) + number}, {"number": number})
            disk.note(number)
    for loss in disk.losses():
        with loss.restored():
            try:
                file = ColumnFile.open(tmp_path / "a", KIND)
            except NotFoundError:
                assert not loss.notes
                continue
            file.verify()
            assert file.meta["number"] in (len(loss.notes) - 1, len(loss.notes))
            assert np.array_equal(file.column("keys"), np.arange(200) + file.meta["number"])


@pytest.mark.parametrize("slots", [(12,), (4096, 8192)])
def test_after_a_power_loss_a_log_counts_the_last_commit_or_the_one_that_was_cut_off(
    tmp_path: Path, slots: tuple[int, ...]
) -> None:
    head, path = LogHead(KIND, 2, slots), tmp_path / "log"
    path.write_bytes(head.initial(0, 0))
    with recorded_disk(tmp_path) as disk, open(path, "r+b", buffering=0) as file:
        state = head.parse(path, path.read_bytes())
        for number in range(1, 4):
            state = head.commit(file.fileno(), state, number, -number)
            disk.note(number)
    for loss in disk.losses():
        with loss.restored():
            first, second = head.parse(path, path.read_bytes()).fields
            assert first == -second
            assert first in (len(loss.notes), len(loss.notes) + 1)
