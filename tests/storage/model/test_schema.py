"""Schemas, and files that contradict them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from modyn.dataset.field_names import wrong_names
from modyn.errors import DataError
from modyn.storage.client import DatasetInfo
from modyn.storage.model.schema import MOST_LACKING, DatasetSchema, LackingFile, SchemaColumn, field_order
from modyn.storage.wire import info_from_proto, info_to_proto
from modyn.testing.fake_storage import FakeStorage

CSV = DatasetSchema("csv", tuple(map(SchemaColumn, ("y", "a", "b"))), "0.csv")
NUMBERS = DatasetSchema("values", (SchemaColumn("age", "float64"),), casts=(SchemaColumn("age", "int64"),))


def test_a_schema_comes_back_from_json_and_from_messages() -> None:
    storage = FakeStorage()
    for schema in (CSV, NUMBERS, replace(CSV, mixed_order=True), DatasetSchema("json", ()), None):
        assert schema is None or DatasetSchema.from_json(schema.to_json()) == schema
        storage.add_dataset("rows")
        storage.datasets["rows"].schema = schema
        info: DatasetInfo = storage.client().dataset("rows")
        assert info_from_proto(info_to_proto(info)).schema == schema


def test_what_files_add_is_joined() -> None:
    other = replace(NUMBERS, casts=(SchemaColumn("age", "int32"),))
    assert NUMBERS.joined(other) == other.joined(NUMBERS)
    assert [cast.type for cast in NUMBERS.joined(other).casts] == ["int32", "int64"]
    assert NUMBERS.joined(replace(NUMBERS, casts=())) == NUMBERS
    assert CSV.joined(replace(CSV, mixed_order=True)).mixed_order


def test_users_are_told_of_orders_and_casts() -> None:
    assert CSV.described() == {"columns": "y, a, b", "decided by": "0.csv"}
    assert replace(CSV, mixed_order=True).described()["order of columns"] == "may differ between files; rows are read in this one"
    assert NUMBERS.described() == {
        "columns": "age (float64)",
        "decided by": "options",
        "casts": "age, int64 in some files, is read as float64",
    }


def test_an_order_says_where_each_column_stands() -> None:
    assert field_order("f", ["y", "a", "b"], CSV) is None
    assert field_order("f", ["b", "y", "a"], CSV) == [1, 2, 0]
    twice = DatasetSchema("csv", (SchemaColumn("a"), SchemaColumn("a")))
    assert field_order("f", ["a", "a"], twice) is None
    with pytest.raises(DataError, match="'b' is there twice"):
        field_order("f", ["y", "a", "b", "b"], CSV)


def test_long_lists_of_columns_are_cut() -> None:
    wide = DatasetSchema("csv", tuple(SchemaColumn(f"c{i}") for i in range(2000)))
    with pytest.raises(DataError, match=r"'c49' and 1,950 more"):
        field_order("f", ["c0"], wide)


def test_long_names_of_columns_are_cut() -> None:
    with pytest.raises(DataError) as error:
        field_order("f", ["y", "b" * 10_000], CSV)
    assert len(error.value.message) < 600


def test_files_that_are_too_many_to_be_named_stay_noted() -> None:
    files = tuple(LackingFile(f"{i}.jsonl", ("a",), ("y",)) for i in range(MOST_LACKING + 1))
    schema = replace(DatasetSchema("json", (SchemaColumn("y"),), "first.jsonl", some_lines=("a", "b")), names_all=True)
    full = schema.joined(replace(schema, lacking=files))
    full = full.joined(replace(schema, lacking=(LackingFile("more.jsonl", ("b",), ("y", "a")),)))
    assert full.lacking == (*files[:-1], LackingFile("", ("a", "b"), ("y",)))
    corrected = replace(full, lacking=tuple(file for file in full.lacking if not file.path))
    assert corrected.joined(schema) == corrected
    (problem,) = wrong_names({"format": "json", "columns": {"b": "number"}}, "rows", corrected)
    assert "no object in the first lines of some files of dataset 'rows' has this field" in str(problem)
