"""The schema of a dataset: columns of files by name, types of Parquet columns, and what contradicts. One service for all tests."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.dataset.field_names import wrong_names
from modyn.errors import DataError, InvalidArgumentError
from modyn.storage.client import DatasetInfo, DatasetSchema, LackingFile, SchemaColumn
from modyn.storage.model.schema import MOST_LACKING
from modyn.testing.waiting import eventually
from tests.support.running_storage import RunningStorage, files_dataset

NUMBERS = {"payload_columns": ["age", "income"], "label_column": "label"}


@pytest.fixture
def storage(module_storage: RunningStorage) -> RunningStorage:
    return module_storage


def register(
    storage: RunningStorage, folder: Path, wrapper: str, options: Mapping[str, Any], source: str = "", **fields: Any
) -> str:
    """Register a folder under its name; return that."""
    return storage.client.register_dataset(files_dataset(folder, options, wrapper, source, **fields)).name


def write(path: Path, content: str | bytes, number: int = 0) -> None:
    """Write a file that is the older, the smaller its number is."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.utime(path, (1_000_000 + number,) * 2)


def write_all(folder: Path, ending: str, *contents: str) -> None:
    """Write files 0, 1, … each newer than the one before."""
    for number, content in enumerate(contents):
        write(folder / f"{number}.{ending}", content, number)


def write_table(path: Path, columns: Mapping[str, Any], number: int = 0) -> None:
    pq.write_table(pa.table(columns), path, row_group_size=3)
    os.utime(path, (1_000_000 + number,) * 2)


def ages(kind: pa.DataType, values: Any = (1, 2, 3, 4)) -> dict[str, pa.Array]:
    return {
        "age": pa.array(values, kind),
        "income": pa.array([10, 20, 30, 40], pa.int64()),
        "label": pa.array([0, 1, 0, 1], pa.int64()),
    }


def payloads(storage: RunningStorage, name: str) -> list[bytes]:
    """Payloads of all samples, by key, read in any order."""
    order = np.random.default_rng(0).permutation(storage.client.dataset(name).next_key)
    found = dict(zip(order.tolist(), storage.payloads_both_ways(order, name), strict=True))
    return [found[key] for key in range(len(order))]


def ingested(storage: RunningStorage, name: str) -> DatasetInfo:
    storage.ingest(name)
    return storage.client.dataset(name)


def schema_of(info: DatasetInfo) -> DatasetSchema:
    assert info.schema is not None
    return info.schema


def names(info: DatasetInfo) -> list[str]:
    return schema_of(info).names


def set_schema(storage: RunningStorage, name: str, schema: str | None) -> None:
    """Give the catalogue's row of a dataset another schema, or none as of a dataset whose files held no sample yet, and publish that."""
    dataset = storage.store.dataset(name)
    with dataset.catalogue.database.raw() as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE storage.datasets SET columns = %s, version = version + 1 WHERE id = %s", (schema, dataset.row.id))
    dataset.refresh()


def test_rows_of_files_whose_columns_stand_in_another_order_are_read_in_one(storage: RunningStorage, tmp_path: Path) -> None:
    name = register(storage, tmp_path / "orders", "CsvFileWrapper", {"label_column": "y"}, "column:t")
    assert storage.client.dataset(name).schema is None
    folder = tmp_path / name
    write(folder / "0.csv", "y,t,a,b\n0,10,a0,b0\n1,11,a1,b1\n", 0)
    info = ingested(storage, name)
    assert (schema_of(info).payloads, names(info), schema_of(info).decided_by, schema_of(info).mixed_order) == (
        "csv",
        ["y", "t", "a", "b"],
        "0.csv",
        False,
    )
    # Two files at once, each with an order of its own, quotes and a BOM.
    write(folder / "1.csv", '\ufeffb,"a",y,t\n"b,2",a2,2,12\r\n"b""3",,3,13\r\n', 1)
    write(folder / "2.csv", " t , y,b,a\n14,4,b4,a4", 2)
    info = ingested(storage, name)
    assert storage.reasons(name) == {}
    assert schema_of(info).mixed_order
    assert names(info) == ["y", "t", "a", "b"]
    assert payloads(storage, name) == [
        b"0,10,a0,b0",
        b"1,11,a1,b1",
        b'2,12,a2,"b,2"',
        b'3,13,,"b""3"',
        b"4,14,a4,b4",
    ]
    samples = storage.client.samples_by_key(name, np.arange(5))
    assert (samples.labels.tolist(), samples.timestamps.tolist()) == ([0, 1, 2, 3, 4], [10, 11, 12, 13, 14])
    # Columns for balancing, by name and by number, are those of the same order.
    for column in ("b", "3"):
        (part,) = storage.client.column_values(name, np.arange(5), column)
        assert part.texts() == ["b0", "b1", "b,2", 'b"3', "b4"]
    # A row that is appended to a file is read as the others of it.
    with (folder / "2.csv").open("a") as file:
        file.write("\n15,5,b5,a5\n")
    ingested(storage, name)
    assert payloads(storage, name)[5] == b"5,15,a5,b5"


def test_columns_by_number_are_those_of_the_first_file(storage: RunningStorage, tmp_path: Path) -> None:
    options = {"label_index": 0, "ignore_first_line": True}
    name = register(storage, tmp_path / "by-number", "CsvFileWrapper", options, "column:1")
    write_all(tmp_path / name, "csv", "y,t,a\n1,10,7\n", "a,t,y\n8,11,2\n", "")
    ingested(storage, name)
    assert storage.client.samples_by_key(name, np.arange(2)).labels.tolist() == [1, 2]
    assert payloads(storage, name) == [b"1,10,7", b"2,11,8"]
    assert storage.reasons(name) == {}


@pytest.mark.parametrize(
    ("kind", "header", "reason"),
    [
        ("missing", "y,a", r"'b' is missing\..* are 'y', 'a', 'b'; its columns are 'y', 'a'\."),
        (
            "extra",
            "y,a,b,c",
            r"'c' is not of the dataset\..* are 'y', 'a', 'b'; its columns are 'y', 'a', 'b', 'c'\. Write the file without 'c', or move",
        ),
        ("twice", "y,a,b,a", r"'a' is there twice\..* are 'y', 'a', 'b'; its columns are 'y', 'a', 'b', 'a'\."),
        ("case", "y,A,B", r"'a', 'b' are missing; 'A', 'B' are not of the dataset"),
    ],
)
def test_a_csv_file_with_other_columns_is_refused_with_both_lists(
    storage: RunningStorage, tmp_path: Path, kind: str, header: str, reason: str
) -> None:
    name = register(storage, tmp_path / f"csv-{kind}", "CsvFileWrapper", {"label_column": "y"})
    write_all(tmp_path / name, "csv", "y,a,b\n1,2,3\n", f"{header}\n1,2,3,4\n")
    assert ingested(storage, name).num_samples == 1
    (problem,) = storage.reasons(name).values()
    assert re.search(f"1.csv has other columns than its dataset: {reason}", problem)
    assert "which its first file, 0.csv, decided" in problem


def test_the_first_line_of_a_file_of_another_kind_is_not_shown(storage: RunningStorage, tmp_path: Path) -> None:
    name = register(storage, tmp_path / "secret", "CsvFileWrapper", {"label_index": 0, "ignore_first_line": True})
    write_all(tmp_path / name, "csv", "y,a\n1,2\n", "hunter2,root\n1,2\n")
    ingested(storage, name)
    assert "it has none of them" in storage.reasons(name)["1.csv"]
    assert "hunter2" not in storage.reasons(name)["1.csv"]


def test_options_decide_before_a_file_does_and_stay(storage: RunningStorage, tmp_path: Path) -> None:
    name = register(storage, tmp_path / "by-option", "CsvFileWrapper", {"label_column": "y", "columns": ["a", "b", "y"]})
    assert names(storage.client.dataset(name)) == ["a", "b", "y"]
    write(tmp_path / name / "0.csv", "y,a,b\n1,2,3\n", 0)
    info = ingested(storage, name)
    assert (schema_of(info).decided_by, schema_of(info).mixed_order) == ("", True)
    assert payloads(storage, name) == [b"2,3,1"]
    changed = info.config.model_copy(update={"file_wrapper_config": {"label_column": "y", "columns": ["y", "a", "b"]}})
    with pytest.raises(
        InvalidArgumentError, match=r"the schema of dataset 'by-option' is \['a', 'b', 'y'\], not \['y', 'a', 'b'\]"
    ):
        storage.client.change_dataset(changed)
    assert storage.client.list_datasets()[0].schema is None
    # Rows that are indexed are read in the order of the option, also where it is no more.
    storage.client.change_dataset(info.config.model_copy(update={"file_wrapper_config": {"label_column": "y"}}))
    write(tmp_path / name / "1.csv", "y,a\n1,2\n", 1)
    assert ingested(storage, name).schema == info.schema
    assert "Those of the dataset, which its options decided, are 'a', 'b', 'y'" in storage.reasons(name)["1.csv"]


def lines(*rows: Mapping[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_a_json_file_without_a_field_of_the_dataset_is_refused(storage: RunningStorage, tmp_path: Path) -> None:
    name = register(storage, tmp_path / "json", "JsonLinesFileWrapper", {"label_field": "y"})
    folder = tmp_path / name
    write(folder / "0.jsonl", lines({"y": 1, "a": 2, "b": 3, "note": "x"}, {"b": 4, "a": None, "y": 2}), 0)
    write(folder / "1.jsonl", lines({"b": 3, "y": 1}, {"y": 2, "a": 1}), 1)  # each in some line, and more is no fault
    write(folder / "2.jsonl", lines({"y": 1, "a": 2, "B": 3}), 2)
    info = ingested(storage, name)
    assert names(info) == ["y", "a", "b"]
    assert info.num_samples == 4
    found = storage.reasons(name)
    assert list(found) == ["2.jsonl"]
    assert "'b' is missing; 'B' is not of the dataset" in found["2.jsonl"]
    assert "are 'y', 'a', 'b'; its columns are 'y', 'a', 'B'" in found["2.jsonl"]
    fewer = info.config.model_copy(update={"file_wrapper_config": {"label_field": "y", "required_fields": ["y"]}})
    storage.client.change_dataset(fewer)
    assert ingested(storage, name).num_samples == 5


def refused(info: DatasetInfo, field: str) -> str:
    """The message of `modyn check` about a column of a section, empty: it is valid; with its severity."""
    return "; ".join(map(str, wrong_names({"format": "json", "columns": {field: "number"}}, "files", info.schema)))


def test_files_whose_paths_end_alike_are_not_mixed_up(storage: RunningStorage, tmp_path: Path) -> None:
    name = register(storage, tmp_path / "endings", "JsonLinesFileWrapper", {"label_field": "y"})
    folder = tmp_path / name
    (folder / "x").mkdir()
    write(folder / "a.jsonl", lines({"y": 1, "price": 2}, {"y": 1}), 0)
    write(folder / "b.jsonl", lines({"y": 1}), 1)
    write(folder / "x" / "b.jsonl", lines({"y": 1, "price": 2}) * 1200, 2)
    write(folder / "x" / "a.jsonl", lines({"y": 1, "price": 2}), 3)
    assert ingested(storage, name).num_samples == 1204
    write(folder / "x" / "b.jsonl", lines({"y": 1, "price": 2}) * 1210, 4)
    write(folder / "x" / "a.jsonl", lines({"y": 1, "price": 2}, {"y": 1, "more": 1}), 5)
    info = ingested(storage, name)
    assert (info.num_samples, storage.reasons(name)) == (1215, {})
    assert (schema_of(info).some_lines, schema_of(info).lacking) == (("price",), (LackingFile("b.jsonl", ("price",), ("y",)),))
    write(folder / "b.jsonl", lines({"y": 1, "price": 3}), 6)
    storage.client.forget_file(name, "b.jsonl")
    info = ingested(storage, name)
    assert schema_of(info).lacking == ()
    assert refused(info, "price").startswith("warning: ")


def test_lines_that_are_appended_to_the_first_file_decide_no_fields(storage: RunningStorage, tmp_path: Path) -> None:
    name = register(storage, tmp_path / "appended", "JsonLinesFileWrapper", {"label_field": "y"})
    for number, file in enumerate(("a.jsonl", "b.jsonl")):
        write(tmp_path / name / file, lines({"y": 1}, {"y": 0}), number)
    before = ingested(storage, name)
    write(tmp_path / name / "a.jsonl", lines({"y": 1}, {"y": 0}) + lines({"y": 1, "price": 2}) * 10, 2)
    info = ingested(storage, name)
    assert (info.num_samples, info.schema) == (14, before.schema)
    assert "lines of a.jsonl, as it was when it decided the fields of dataset 'files', has this field." in refused(info, "price")
    # They are decided again by the first file, as it is now, once an option names them no more.
    for fields in (["y"], None):
        change_fields(storage, name, fields)
    info = ingested(storage, name)
    assert (schema_of(info).names, schema_of(info).some_lines, schema_of(info).decided_by) == (["y"], ("price",), "a.jsonl")
    assert schema_of(info).lacking == (LackingFile("b.jsonl", ("price",), ("y",)),)


def change_fields(storage: RunningStorage, name: str, fields: list[str] | None) -> None:
    config = storage.client.dataset(name).config
    options = {**config.file_wrapper_config, "required_fields": fields}
    storage.client.change_dataset(config.model_copy(update={"file_wrapper_config": options}))


def test_fields_that_an_option_names_no_more_are_decided_by_the_first_file(storage: RunningStorage, tmp_path: Path) -> None:
    options = {"label_field": "y", "required_fields": ["y", "a"]}
    name = register(storage, tmp_path / "no-more", "JsonLinesFileWrapper", options)
    write_all(tmp_path / name, "jsonl", lines({"y": 1}, {"y": 2, "a": 3}), lines({"y": 1}))
    info = ingested(storage, name)
    assert "Those of the dataset, which its options decided, are 'y', 'a'" in storage.reasons(name)["1.jsonl"]
    assert "the option required_fields of dataset 'files' does not name this field" in refused(info, "b")
    change_fields(storage, name, None)
    assert storage.client.dataset(name).schema is None
    info = ingested(storage, name)
    assert (info.num_samples, storage.reasons(name)) == (3, {})
    assert (schema_of(info).names, schema_of(info).some_lines, schema_of(info).decided_by) == (["y"], ("a",), "0.jsonl")
    assert "no object in the first lines of 1.jsonl of dataset 'files' has this field" in refused(info, "a")
    assert "no object in the first lines of 0.jsonl, as it was" in refused(info, "b")


def test_fields_that_are_decided_again_are_those_of_all_files_that_are_there(storage: RunningStorage, tmp_path: Path) -> None:
    name = register(storage, tmp_path / "again", "JsonLinesFileWrapper", {"label_field": "y", "required_fields": ["y"]})
    for number, fields in enumerate(({"y": 1, "a": 2, "b": 3}, {"y": 1, "b": 3}, {"y": 1, "b": 3, "a": 1, "c": 1})):
        write(tmp_path / name / f"{number}.jsonl", lines(fields), number)
    ingested(storage, name)
    change_fields(storage, name, None)
    info = ingested(storage, name)
    assert (schema_of(info).names, schema_of(info).some_lines, schema_of(info).names_all) == (["y", "b"], ("a",), True)
    assert schema_of(info).lacking == (LackingFile("1.jsonl", ("a",), ("y", "b")),)
    assert "no object in the first lines of 1.jsonl of dataset 'files' has this field" in refused(info, "a")


def test_files_without_a_field_beyond_those_that_are_named_are_noted_as_one(storage: RunningStorage, tmp_path: Path) -> None:
    name = register(storage, tmp_path / "many-lack", "JsonLinesFileWrapper", {"label_field": "y"})
    write(tmp_path / name / "000.jsonl", lines({"y": 1, "a": 2}, {"y": 1, "b": 1}), 0)
    for number in range(1, MOST_LACKING + 3):
        write(tmp_path / name / f"{number:03}.jsonl", lines({"y": 1, "b" if number > 1 else "a": 2}), number)
    schema = schema_of(ingested(storage, name))
    assert schema.lacking[0] == LackingFile("001.jsonl", ("b",), ("y", "a"))
    assert schema.lacking[MOST_LACKING:] == (LackingFile("", ("a",), ("y", "b")),)
    assert schema.described()["files without them"].endswith("100.jsonl without 'a'; others without 'a'")


def test_fields_of_some_lines_are_noted_and_files_without_them(storage: RunningStorage, tmp_path: Path) -> None:
    name = register(storage, tmp_path / "rare", "JsonLinesFileWrapper", {"label_field": "y"})
    folder = tmp_path / name
    write(folder / "0.jsonl", lines({"y": 1, "a": 2}, {"y": 1, "b": 3, "c": 4}, {"y": 1}), 0)
    write(folder / "1.jsonl", lines({"y": 1}, {"y": 2, "c": 1}, {"y": 2, "d": 1}, {"y": 1, "b": 0, "a": None}), 1)
    write(folder / "2.jsonl", lines({"y": 1, "b": 2}, {"B": 2, "y": 1}), 2)
    write(folder / "3.jsonl", lines({"y": 1, "b": 2}), 3)
    schema = schema_of(ingested(storage, name))
    assert (schema.names, schema.some_lines, schema.names_all) == (["y"], ("a", "b", "c"), True)
    without = (LackingFile("2.jsonl", ("a", "c"), ("y", "b", "B")), LackingFile("3.jsonl", ("a", "c"), ("y", "b")))
    assert schema.lacking == without
    assert schema.described()["files without them"] == "2.jsonl without 'a', 'c'; 3.jsonl without 'a', 'c'"
    with storage.short_cut(name) as local:
        assert local.schema(name) == schema

    # A file that is corrected, or that grows. More lines of the one that decided say nothing of other files.
    write(folder / "2.jsonl", lines({"y": 1, "a": 2}, {"y": 1, "c": 3, "b": 1}), 4)
    storage.client.forget_file(name, "2.jsonl")
    write(folder / "3.jsonl", lines({"y": 1, "b": 2}, {"y": 3, "a": 1}), 5)
    write(folder / "0.jsonl", lines({"y": 1, "a": 2}, {"y": 1, "b": 3, "c": 4}, {"y": 1}, {"y": 1, "e": 1}), 6)
    schema = schema_of(ingested(storage, name))
    assert storage.reasons(name) == {}
    assert (schema.some_lines, schema.lacking) == (("a", "b", "c"), (LackingFile("3.jsonl", ("c",), ("y", "b", "a")),))
    fixed = storage.client.dataset(name).config.model_copy(
        update={"file_wrapper_config": {"label_field": "y", "required_fields": ["y"]}}
    )
    storage.client.change_dataset(fixed)
    schema = schema_of(storage.client.dataset(name))
    assert (schema.names, schema.some_lines, schema.names_all, schema.lacking) == (["y"], (), False, ())


def test_very_many_fields_of_some_lines_are_not_noted(storage: RunningStorage, tmp_path: Path) -> None:
    name = register(storage, tmp_path / "any-field", "JsonLinesFileWrapper", {"label_field": "y"})
    write(tmp_path / name / "0.jsonl", lines(*({"y": 1, f"f{i}": i, f"g{i}": i} for i in range(501))), 0)
    schema = schema_of(ingested(storage, name))
    assert (schema.names, schema.some_lines, schema.names_all) == (["y"], (), False)


@pytest.mark.parametrize(
    ("first", "second", "cast"),
    [
        (pa.float64(), pa.int64(), "int64"),
        (pa.int64(), pa.int32(), "int32"),
        (pa.int64(), pa.uint32(), "uint32"),
        (pa.float64(), pa.float32(), "float"),
        (pa.float32(), pa.int16(), "int16"),
        (pa.uint16(), pa.uint8(), "uint8"),
    ],
)
def test_numbers_of_a_narrower_type_are_cast(
    storage: RunningStorage, tmp_path: Path, first: pa.DataType, second: pa.DataType, cast: str
) -> None:
    name = register(storage, tmp_path / f"{first}-{second}", "ParquetFileWrapper", NUMBERS)
    write_table(tmp_path / name / "0.parquet", ages(first), 0)
    write_table(tmp_path / name / "1.parquet", ages(second, (5, 6, 7, 8)), 1)
    info = ingested(storage, name)
    assert storage.reasons(name) == {}
    dtype = np.dtype([("age", first.to_pandas_dtype()), ("income", "<i8")])
    rows = np.frombuffer(b"".join(payloads(storage, name)), dtype)
    assert rows["age"].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert rows["income"].tolist() == [10, 20, 30, 40] * 2
    assert [c.name for c in schema_of(info).casts] == ["age"]
    assert schema_of(info).casts[0].type.startswith(cast)


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (pa.int64(), pa.float64(), ("float64", "int64")),
        (pa.int32(), pa.int64(), ("int64", "int32")),
        (pa.float32(), pa.float64(), ("float64", "float32")),
        (pa.int64(), pa.uint64(), ("uint64", "int64")),
        (pa.uint8(), pa.int8(), ("int8", "uint8")),
        (pa.float16(), pa.int16(), ("int16", "float16")),
    ],
)
def test_numbers_of_a_wider_type_are_refused_with_both_types(
    storage: RunningStorage, tmp_path: Path, first: pa.DataType, second: pa.DataType, told: tuple[str, str]
) -> None:
    name = register(storage, tmp_path / f"{first}-{second}", "ParquetFileWrapper", NUMBERS)
    values = np.array([1, 2, 3, 4], np.float16) if first == pa.float16() else (1, 2, 3, 4)
    write_table(tmp_path / name / "0.parquet", ages(first, values), 0)
    write_table(tmp_path / name / "1.parquet", ages(second), 1)
    assert ingested(storage, name).num_samples == 4
    assert (
        f"1.parquet: column 'age' is of type {told[0]}, and in its dataset of type {told[1]}"
        in storage.reasons(name)["1.parquet"]
    )
    assert len(payloads(storage, name)) == 4


def test_whole_numbers_that_are_not_exact_as_floats_are_refused(storage: RunningStorage, tmp_path: Path) -> None:
    name = register(storage, tmp_path / "exact", "ParquetFileWrapper", {**NUMBERS, "payload_types": {"age": "float64"}})
    write_table(tmp_path / name / "0.parquet", ages(pa.int64(), (1, -(2**53), 2**53, 4)), 0)
    write_table(tmp_path / name / "1.parquet", ages(pa.int64(), (1, 2, 3, 2**53 + 1)), 1)
    write_table(tmp_path / name / "2.parquet", ages(pa.uint64(), (1, 2, 2**64 - 1, 4)), 2)
    info = ingested(storage, name)
    assert info.num_samples == 4
    assert schema_of(info).columns == (SchemaColumn("age", "float64"), SchemaColumn("income", "int64"))
    assert np.frombuffer(payloads(storage, name)[1], "<f8")[0] == -(2.0**53)
    found = storage.reasons(name)
    assert (
        "1.parquet, row 3: 9007199254740993 in column 'age', of type int64, has no exact value as float64" in found["1.parquet"]
    )
    assert "2.parquet, row 2: 18446744073709551615 in column 'age', of type uint64" in found["2.parquet"]
    other = info.config.model_copy(update={"file_wrapper_config": NUMBERS | {"payload_types": {"age": "int64"}}})
    with pytest.raises(InvalidArgumentError, match="the schema of dataset 'exact' is .*age .float64.*, not .*age .int64"):
        storage.client.change_dataset(other)


def test_a_column_of_no_usable_type_is_refused_with_the_type_of_its_dataset(storage: RunningStorage, tmp_path: Path) -> None:
    """pandas writes a column without any value as nulls."""
    name = register(storage, tmp_path / "empty-column", "ParquetFileWrapper", NUMBERS)
    write_table(tmp_path / name / "0.parquet", ages(pa.float64(), (1, 2, 3, 4)), 0)
    write_table(tmp_path / name / "1.parquet", ages(pa.null(), (None,) * 4), 1)
    assert ingested(storage, name).num_samples == 4
    found = storage.reasons(name)["1.parquet"]
    assert "1.parquet: column 'age' is of type null, not float64 as in its dataset, and cannot be packed" in found


def test_the_payload_columns_change_until_a_file_is_indexed(storage: RunningStorage, tmp_path: Path) -> None:
    name = register(storage, tmp_path / "payload", "ParquetFileWrapper", {"payload_columns": ["x"], "label_column": "label"})
    config = storage.client.dataset(name).config
    storage.client.change_dataset(config.model_copy(update={"file_wrapper_config": NUMBERS}))
    write_table(tmp_path / name / "0.parquet", ages(pa.int64(), (1, 2, 3, 4)), 0)
    assert ingested(storage, name).num_samples == 4
    with pytest.raises(
        InvalidArgumentError,
        match="payload is of dataset 'payload' is 'age', 'income', not 'x', and holds for samples that are indexed",
    ):
        storage.client.change_dataset(config)


def test_bytes_are_the_same_in_all_types_that_hold_them(storage: RunningStorage, tmp_path: Path) -> None:
    name = register(storage, tmp_path / "bytes", "ParquetFileWrapper", {"payload_columns": ["x"], "label_column": "label"})
    kinds = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(2), pa.dictionary(pa.int32(), pa.string())]
    for number, kind in enumerate(kinds):
        values = pa.array([f"{number}{i}" for i in range(4)], pa.string()).cast(pa.binary()).cast(kind) if number == 4 else None
        values = pa.array([f"{number}{i}" for i in range(4)]).cast(kind) if values is None else values
        write_table(tmp_path / name / f"{number}.parquet", {"x": values, "label": pa.array([0, 1, 0, 1])}, number)
    info = ingested(storage, name)
    assert storage.reasons(name) == {}
    assert payloads(storage, name) == [f"{number}{i}".encode() for number in range(len(kinds)) for i in range(4)]
    assert schema_of(info).columns == (SchemaColumn("x", "string"),)


def test_bytes_of_a_fixed_length_stay_so(storage: RunningStorage, tmp_path: Path) -> None:
    name = register(storage, tmp_path / "fixed", "ParquetFileWrapper", {"payload_columns": ["x"], "label_column": "label"})
    for number, (kind, width) in enumerate([(pa.binary(2), 2), (pa.binary(3), 3), (pa.binary(), 2)]):
        columns = {"x": pa.array([b"a" * width], kind), "label": pa.array([0])}
        write_table(tmp_path / name / f"{number}.parquet", columns, number)
    assert ingested(storage, name).num_samples == 1
    assert {path: "of type fixed_size_binary[2]" in reason for path, reason in storage.reasons(name).items()} == {
        "1.parquet": True,
        "2.parquet": True,
    }
    assert payloads(storage, name) == [b"aa"]


def test_a_parquet_file_without_a_payload_column_is_refused(storage: RunningStorage, tmp_path: Path) -> None:
    name = register(storage, tmp_path / "lacking", "ParquetFileWrapper", NUMBERS)
    write_table(tmp_path / name / "0.parquet", ages(pa.int64()), 0)
    columns = ages(pa.int64())
    write_table(tmp_path / name / "1.parquet", {"label": columns["label"], "more": columns["age"], "age": columns["age"]}, 1)
    reordered = {key: columns[key] for key in ("income", "label", "age")}
    write_table(tmp_path / name / "2.parquet", reordered, 2)
    ingested(storage, name)
    assert "1.parquet has no columns 'income'; its columns are 'label', 'more', 'age'" in storage.reasons(name)["1.parquet"]
    first = payloads(storage, name)
    assert first[:4] == first[4:]


def test_a_first_csv_file_that_is_refused_decides_nothing(storage: RunningStorage, tmp_path: Path) -> None:
    name = register(storage, tmp_path / "refused-csv", "CsvFileWrapper", {"label_column": "y"})
    write_all(tmp_path / name, "csv", "", "y,b,c\nno label,1,2\n")
    for number in range(2, 8):
        write(tmp_path / name / f"{number}.csv", f"y,a,b\n{number},2,3\n", number)
    info = ingested(storage, name)
    assert (names(info), info.num_samples) == (["y", "a", "b"], 6)
    assert sorted(storage.reasons(name)) == ["0.csv", "1.csv"]
    assert payloads(storage, name) == [f"{number},2,3".encode() for number in range(2, 8)]


def test_a_first_parquet_file_that_is_refused_decides_nothing(storage: RunningStorage, tmp_path: Path) -> None:
    name = register(storage, tmp_path / "refused-parquet", "ParquetFileWrapper", NUMBERS)
    write_table(tmp_path / name / "0.parquet", ages(pa.int32(), (1, 2, None, 4)), 0)
    for number in range(1, 8):
        write_table(tmp_path / name / f"{number}.parquet", ages(pa.float64()), number)
    info = ingested(storage, name)
    assert info.num_samples == 28
    assert (schema_of(info).decided_by, schema_of(info).columns[0]) == ("1.parquet", SchemaColumn("age", "float64"))
    assert list(storage.reasons(name)) == ["0.parquet"]


def test_a_first_file_of_many_samples_decides(storage: RunningStorage, tmp_path: Path) -> None:
    """Some of its samples are in segments before the whole file is read."""
    name = register(storage, tmp_path / "large", "JsonLinesFileWrapper", {"label_field": "y"})
    dataset = storage.store.dataset(name)
    dataset.limits = replace(dataset.limits, held_samples=10)
    for number, field in enumerate("abab"):
        line = json.dumps({"y": number, field: "x" * 100}) + "\n"
        write(tmp_path / name / f"{number}.jsonl", line * 200_000 if number == 0 else line, number)
    info = ingested(storage, name)
    assert (names(info), info.num_samples) == (["y", "a"], 200_001)
    assert sorted(storage.reasons(name)) == ["1.jsonl", "3.jsonl"]


def test_rows_without_a_header_have_no_schema(storage: RunningStorage, tmp_path: Path) -> None:
    name = register(storage, tmp_path / "headerless", "CsvFileWrapper", {"label_index": 0})
    write_all(tmp_path / name, "csv", "1,a\n", "2,b,c\n")
    assert ingested(storage, name).schema is None
    named = register(storage, tmp_path / "named", "CsvFileWrapper", {"label_index": 0, "columns": ["y", "a"]})
    write(tmp_path / named / "0.csv", "1,a\n", 0)
    assert names(ingested(storage, named)) == ["y", "a"]
    with storage.short_cut(named) as local:
        assert local.schema(named) == storage.client.dataset(named).schema


@settings(max_examples=10)
@given(st.data())
def test_any_order_of_columns_gives_the_same_rows(storage: RunningStorage, data: st.DataObject) -> None:
    fields = st.sampled_from(["", "a", "1.5", '"x,y"', '"say ""so"""', '"two\nlines"', "ü", "a b"])
    columns = ["y", "a", "b", "c"]
    tables = data.draw(
        st.lists(
            st.tuples(st.permutations(columns), st.lists(st.tuples(*[fields] * 3), min_size=1, max_size=4)),
            min_size=2,
            max_size=4,
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        name = register(
            storage, Path(folder) / f"any-{os.path.basename(folder)}", "CsvFileWrapper", {"label_column": "y", "columns": columns}
        )
        for number, (order, rows) in enumerate(tables):
            lines = [",".join(order)]
            for row in rows:
                values = dict(zip(columns, ["1", *row], strict=True))
                lines.append(",".join(values[column] for column in order))
            write(Path(folder) / name / f"{number}.csv", "\n".join(lines) + "\n", number)
        ingested(storage, name)
        assert payloads(storage, name) == [",".join(["1", *row]).encode() for _, rows in tables for row in rows]
        storage.client.delete_dataset(name)


def test_a_dataset_without_a_schema_gets_that_of_its_first_file(storage: RunningStorage, tmp_path: Path) -> None:
    name = register(storage, tmp_path / "older", "CsvFileWrapper", {"label_column": "y"})
    write_all(tmp_path / name, "csv", "y,a,b\n1,2,3\n", "b,y,a\n6,4,5\n")
    ingested(storage, name)
    set_schema(storage, name, None)
    assert storage.client.dataset(name).schema is None
    assert payloads(storage, name) == [b"1,2,3", b"6,4,5"]  # as the files have them
    write(tmp_path / name / "2.csv", "a,b,y\n8,9,7\n", 2)
    info = ingested(storage, name)
    assert (names(info), schema_of(info).decided_by) == (["y", "a", "b"], "0.csv")
    assert payloads(storage, name) == [b"1,2,3", b"4,5,6", b"7,8,9"]


def test_parquet_files_without_a_schema_get_types(storage: RunningStorage, tmp_path: Path) -> None:
    name = register(storage, tmp_path / "older-parquet", "ParquetFileWrapper", NUMBERS)
    write_table(tmp_path / name / "0.parquet", ages(pa.int64()), 0)
    schema = schema_of(ingested(storage, name))
    set_schema(storage, name, None)
    write_table(tmp_path / name / "1.parquet", ages(pa.float64()), 1)
    assert ingested(storage, name).schema == schema
    assert list(storage.reasons(name)) == ["1.parquet"]
    assert len(payloads(storage, name)) == 4


def test_parquet_files_that_were_indexed_with_other_types_are_named_when_they_are_read(
    storage: RunningStorage, tmp_path: Path
) -> None:
    name = register(storage, tmp_path / "older-types", "ParquetFileWrapper", NUMBERS)
    write_table(tmp_path / name / "0.parquet", ages(pa.int64()), 0)
    info = ingested(storage, name)
    narrow = replace(schema_of(info), columns=(SchemaColumn("age", "int32"), SchemaColumn("income", "int64")))
    set_schema(storage, name, narrow.to_json())
    with pytest.raises(DataError, match=r"0\.parquet: column 'age' is of type int64, and in its dataset of type int32"):
        payloads(storage, name)


def test_payloads_of_fixed_and_of_other_lengths_are_read_together_without_a_schema(
    storage: RunningStorage, tmp_path: Path
) -> None:
    name = register(storage, tmp_path / "older-bytes", "ParquetFileWrapper", {"payload_columns": ["x"], "label_column": "label"})
    for number, kind in enumerate((pa.binary(), pa.binary(2))):
        write_table(tmp_path / name / f"{number}.parquet", {"x": pa.array([b"ab"], kind), "label": pa.array([0])}, number)
    ingested(storage, name)
    set_schema(storage, name, None)
    assert payloads(storage, name) == [b"ab", b"ab"]


def test_a_schema_comes_back_from_the_index(storage: RunningStorage, tmp_path: Path) -> None:
    name = register(storage, tmp_path / "rebuilt", "CsvFileWrapper", {"label_column": "y"})
    write(tmp_path / name / "0.csv", "y,a\n1,2\n", 0)
    ingested(storage, name)
    catalogue = storage.store.dataset(name).catalogue
    backup = catalogue.contents(name)
    assert backup is not None
    files = catalogue.files(backup.row.id)
    write(tmp_path / name / "1.csv", "a,y\n4,3\n", 1)
    info = ingested(storage, name)
    version = catalogue.version(backup.row.id)
    assert version is not None
    catalogue.replace(backup.row.id, version, backup.row.version, files, backup.segments)
    assert storage.client.rebuild_dataset(name).schema == info.schema
    assert payloads(storage, name) == [b"1,2", b"3,4"]


def test_files_of_a_watched_folder_are_compared_as_they_come(storage: RunningStorage, tmp_path: Path) -> None:
    name = register(storage, tmp_path / "watched", "CsvFileWrapper", {"label_column": "y"}, watch=True)
    for number, text in enumerate(("y,a\n1,2\n", "a,y\n4,3\n", "y,c\n5,6\n")):
        write(tmp_path / name / f"{number}.csv", text, number)
        eventually(partial(_has_seen, storage, name, number + 1))
    assert payloads(storage, name) == [b"1,2", b"3,4"]
    assert list(storage.reasons(name)) == ["2.csv"]


def _has_seen(storage: RunningStorage, name: str, num_files: int) -> bool:
    info = storage.client.dataset(name)
    return info.num_files + info.num_problems == num_files
