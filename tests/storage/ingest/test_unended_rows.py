"""A last row without its end may be half-written: it waits, while the rows before it are samples."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from modyn.config.dataset import DatasetConfig
from tests.support.running_storage import FileDataset, RunningStorage, files_dataset

FORMATS: dict[str, tuple[dict[str, object], str, str]] = {
    "CsvFileWrapper": ({"label_index": 1}, ".csv", "a,{}"),
    "JsonLinesFileWrapper": ({"label_field": "y"}, ".jsonl", '{{"x": "a", "y": {}}}'),
}
WAIT_S = 60.0


class Growing(FileDataset):
    """A dataset of one file that is written in parts."""

    def __init__(self, storage: RunningStorage, folder: Path, name: str, wrapper: str, **options: object) -> None:
        fixed, ending, self.row = FORMATS[wrapper]
        self.path = folder / f"a{ending}"
        super().__init__(storage, files_dataset(folder, {**fixed, **options}, wrapper, name=name))

    def labels_after(self, text: str = "", *, age_s: float = 0.0) -> list[int]:
        """Append `text`, ingest the file as one that has not changed for `age_s`, and return all labels."""
        with self.path.open("a", newline="") as file:
            file.write(text)
        at = time.time() - age_s
        os.utime(self.path, (at, at))
        self.ingest()
        return self.labels()


@pytest.mark.parametrize("wrapper", FORMATS)
def test_half_a_row_waits_for_the_other_half(module_storage: RunningStorage, tmp_path: Path, wrapper: str) -> None:
    rows = Growing(module_storage, tmp_path / "d", f"half-{wrapper}", wrapper)
    whole = rows.row.format(12)
    assert rows.labels_after(rows.row.format(3) + "\n" + whole[:-1]) == [3]
    (reason,) = rows.reasons()
    assert f"begins at byte {len(rows.row.format(3)) + 1} has no line break" in reason
    assert "once the file has not changed for 60 s (last_row_wait_s), it is taken as it is" in reason
    assert rows.labels_after() == [3]
    assert rows.labels_after(whole[-1:]) == [3]
    assert len(rows.reasons()) == 1
    assert rows.labels_after("\n" + rows.row.format(7) + "\n") == [3, 12, 7]
    assert rows.reasons() == []
    assert rows.labels_after(rows.row.format(8) + "\n") == [3, 12, 7, 8]


@pytest.mark.parametrize("wrapper", FORMATS)
def test_a_last_row_is_taken_once_the_file_rests(module_storage: RunningStorage, tmp_path: Path, wrapper: str) -> None:
    rows = Growing(module_storage, tmp_path / "d", f"rest-{wrapper}", wrapper)
    assert rows.labels_after(rows.row.format(5)) == []
    assert rows.labels_after(age_s=2 * WAIT_S) == [5]
    assert rows.reasons() == []
    assert rows.labels_after("\n" + rows.row.format(6), age_s=2 * WAIT_S) == [5, 6]
    at_once = Growing(module_storage, tmp_path / "e", f"at-once-{wrapper}", wrapper, last_row_wait_s=0)
    assert at_once.labels_after(rows.row.format(5)) == [5]


@pytest.mark.parametrize("wrapper", FORMATS)
def test_a_file_of_half_a_row_may_go_again(module_storage: RunningStorage, tmp_path: Path, wrapper: str) -> None:
    rows = Growing(module_storage, tmp_path / "d", f"gone-{wrapper}", wrapper)
    assert rows.labels_after(rows.row.format(5)[:-1]) == []
    assert len(rows.reasons()) == 1
    rows.path.unlink()
    rows.ingest()
    assert rows.reasons() == []
    assert rows.labels_after(rows.row.format(5) + "\n") == [5]


@pytest.mark.parametrize("wrapper", FORMATS)
def test_a_bad_last_row_is_one_only_when_it_is_not_continued(
    module_storage: RunningStorage, tmp_path: Path, wrapper: str
) -> None:
    rows = Growing(module_storage, tmp_path / "d", f"bad-{wrapper}", wrapper, max_bad_rows=1)
    assert rows.labels_after(rows.row.format(1) + "\n" + rows.row.format('"x"')) == [1]
    assert len(rows.reasons()) == 1
    assert rows.labels_after(age_s=2 * WAIT_S) == [1]
    assert module_storage.client.dataset(rows.name).num_skipped == 1


def test_a_quote_that_is_open_at_the_end_waits_too(module_storage: RunningStorage, tmp_path: Path) -> None:
    rows = Growing(module_storage, tmp_path / "d", "quoted", "CsvFileWrapper", label_index=0)
    assert rows.labels_after('1,a\n2,"first line\n') == [1]
    assert "a quote in it is not closed" in rows.reasons()[0]
    assert rows.labels_after('second line"\n3,c\n') == [1, 2, 3]
    assert rows.reasons() == []


class Records(Growing):
    """A dataset of one file of records of four bytes, with labels of two."""

    def __init__(self, storage: RunningStorage, folder: Path) -> None:
        self.path = folder / "a.bin"
        FileDataset.__init__(self, storage, self.config(record_size=4))

    def config(self, **options: object) -> DatasetConfig:
        return files_dataset(self.path.parent, {"label_size": 2, **options}, "BinaryFileWrapper")


PART = "it ends within a record: 6 bytes are 1 records of 4 bytes and 2 more, from byte 4 on; complete the last record, or check record_size"


def test_a_part_of_a_binary_record_waits_after_whole_ones(module_storage: RunningStorage, tmp_path: Path) -> None:
    rows = Records(module_storage, tmp_path / "records")
    assert rows.labels_after("\x01\0aa\x02\0") == []  # Of a new file, another record_size may be the reason.
    assert rows.reasons() == [f"{rows.path}: {PART}. It may be half-written and waits for its end"]
    assert rows.labels_after() == []
    assert rows.labels_after("b") == [1]  # It has grown: it is being written.
    assert rows.labels_after(age_s=2 * WAIT_S) == [1]
    assert "7 bytes are 1 records of 4 bytes and 3 more, from byte 4 on" in rows.reasons()[0]
    assert rows.labels_after("b") == [1, 2]
    assert rows.reasons() == []
    assert rows.labels_after("\x03\0cc\x04") == [1, 2, 3]
    assert len(rows.reasons()) == 1
    assert rows.labels_after("\0dd") == [1, 2, 3, 4]
    assert rows.reasons() == []
    assert rows.labels_after("\x05\0ee\x06", age_s=2 * WAIT_S) == [1, 2, 3, 4, 5]
    assert "complete the last record, or check record_size" in rows.reasons()[0]


def test_a_binary_file_with_another_record_size_gives_no_samples(module_storage: RunningStorage, tmp_path: Path) -> None:
    rows = Records(module_storage, tmp_path / "wrong-size")
    assert rows.labels_after("\x01\0a\x02\0b") == []
    assert rows.labels_after(age_s=2 * WAIT_S) == []
    rows.path.write_bytes(b"\x01\0a\x03\0b")  # Written again with the same number of bytes, it has not grown.
    assert rows.labels_after() == []
    assert rows.reasons() == [f"{rows.path}: {PART}. It may be half-written and waits for its end"]
    module_storage.client.change_dataset(rows.config(record_size=3))
    assert rows.labels_after() == [1, 3]
    assert rows.reasons() == []
