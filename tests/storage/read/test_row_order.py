"""Rows of CSV files in the order of their dataset's columns, from a folder and from a bucket."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
from obstore.store import MemoryStore

from modyn import _core
from modyn._core import Gatherer, PathTable
from modyn.errors import DataError, InvalidArgumentError
from modyn.storage.files.bucket import BucketFiles
from modyn.storage.files.local import LocalFiles
from modyn.storage.formats import build_format
from modyn.storage.formats.base import FileFormat
from modyn.storage.model.schema import DatasetSchema, SchemaColumn
from modyn.storage.read.bucket_ranges import BucketRangeReader
from modyn.storage.read.record_readers import LocalRecordReader
from modyn.storage.read.row_order import OrderedRowReader

FILES = ["y,a,b\n0,a0,b0\n", "b,y,a\nb1,1,a1\nb2,2,a2\n", "y,a,b\n3,a3,b3\n", "a,b,y\na4,b4,4\n"]


def format_of(names: str = "yab", **options: object) -> FileFormat:
    built = build_format("CsvFileWrapper", options or {"label_column": "y"})
    built.schema = DatasetSchema("csv", tuple(map(SchemaColumn, names)), "0.csv", mixed_order=True)
    return built


def table(base: str, num_files: int) -> PathTable:
    paths = PathTable(base)
    paths.append([f"{number}.csv" for number in range(num_files)])
    return paths


def local(folder: Path, contents: Sequence[str], file_format: FileFormat) -> OrderedRowReader:
    for number, content in enumerate(contents):
        (folder / f"{number}.csv").write_text(content)
    paths = table(os.fspath(folder), len(contents))
    return OrderedRowReader(LocalRecordReader(Gatherer(), paths), file_format, LocalFiles(os.fspath(folder)), paths)


def in_a_bucket(contents: Sequence[str], file_format: FileFormat) -> OrderedRowReader:
    store = MemoryStore()
    for number, content in enumerate(contents):
        obstore.put(store, f"{number}.csv", content.encode())
    files, paths = BucketFiles("s3://b", make_store=lambda url, limits: store), table("s3://b", len(contents))
    return OrderedRowReader(BucketRangeReader(files, paths), file_format, files, paths)


def rows(reader: OrderedRowReader, contents: Sequence[str], asked: Sequence[tuple[int, int]]) -> list[str]:
    """Return the rows that are read for places (file, number of the row in the file)."""
    lines = [content.split("\n") for content in contents]
    offsets = np.array([sum(len(line) + 1 for line in lines[file][: row + 1]) for file, row in asked], np.int64)
    lengths = np.array([len(lines[file][row + 1]) for file, row in asked], np.int64)
    data, bounds = reader.gather(np.array([file for file, _ in asked], np.uint32), offsets, lengths)
    return [data[start:stop].tobytes().decode() for start, stop in pairwise(bounds.tolist())]


@pytest.mark.parametrize("in_bucket", [False, True], ids=["local", "bucket"])
def test_rows_are_in_the_order_of_the_schema(tmp_path: Path, in_bucket: bool) -> None:
    reader = in_a_bucket(FILES, format_of()) if in_bucket else local(tmp_path, FILES, format_of())
    assert rows(reader, FILES, [(0, 0)]) == ["0,a0,b0"]
    assert rows(reader, FILES, [(1, 1), (3, 0), (0, 0), (1, 0), (1, 1), (2, 0)]) == [
        "2,a2,b2", "4,a4,b4", "0,a0,b0", "1,a1,b1", "2,a2,b2", "3,a3,b3",
    ]  # fmt: skip
    assert rows(reader, FILES, []) == []


def test_any_number_of_threads_read_first_lines(tmp_path: Path) -> None:
    contents = [FILES[number % 4] for number in range(40)]
    reader = local(tmp_path, contents, format_of())

    def read(seed: int) -> bool:
        files = np.random.default_rng(seed).integers(0, 40, 30).tolist()
        expected = [[0, 1, 3, 4][file % 4] for file in files]
        return rows(reader, contents, [(file, 0) for file in files]) == [f"{n},a{n},b{n}" for n in expected]

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(40)))


def test_a_file_that_contradicts_is_named_where_it_is_read(tmp_path: Path) -> None:
    contents = ["y,a,b\n0,a0,b0\n", "y,a,c\n1,a1,c1\n"]
    reader = local(tmp_path, contents, format_of())
    with pytest.raises(DataError, match=r"1\.csv has other columns than its dataset: 'b' is missing; 'c' is not of the dataset"):
        rows(reader, contents, [(0, 0), (1, 0)])
    assert rows(reader, contents, [(0, 0)]) == ["0,a0,b0"]


def test_a_first_line_may_be_a_comment_where_no_column_is_chosen_by_its_name(tmp_path: Path) -> None:
    """Files that were indexed before they were compared: their rows are read as they are."""
    contents = ["# of May\n0,a0,b0\n", "# of June\n1,a1,b1\n"]
    reader = local(tmp_path, contents, format_of("x", label_index=0, ignore_first_line=True))
    assert rows(reader, contents, [(1, 0), (0, 0)]) == ["1,a1,b1", "0,a0,b0"]


def test_a_row_with_another_number_of_fields_is_named(tmp_path: Path) -> None:
    contents = ["b,y,a\nb0,0,a0\nb1,1\n"]
    with pytest.raises(
        DataError, match=r"0\.csv, the row at byte 14: it has 2 fields, and the first line of the file names 3 columns"
    ):
        rows(local(tmp_path, contents, format_of()), contents, [(0, 0), (0, 1)])


def test_wrong_orders_and_rows_are_refused() -> None:
    data, bounds, order = np.frombuffer(b"a,b", np.uint8).copy(), np.array([0, 3]), np.array([1, 0])
    assert _core.reorder_fields(data, bounds, np.array([0]), order, ",", '"') is None
    assert data.tobytes() == b"b,a"
    assert _core.reorder_fields(data, bounds, np.array([0]), np.array([0]), ",") == (0, 2)
    right: dict[str, Any] = {"data": data, "bounds": bounds, "rows": np.array([0]), "order": order, "separator": ","}
    for wrong in ({"rows": np.array([1])}, {"bounds": np.array([0, 9])}, {"order": np.array([0, 0])}):
        with pytest.raises(InvalidArgumentError):
            _core.reorder_fields(**{**right, **wrong})
