"""CSV rows are read by the column names of their dataset's files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from modyn.dataset.key_loader import load_keys
from modyn.errors import ConfigError, DataError
from modyn.storage.client import DatasetSchema, LackingFile, SchemaColumn
from modyn.testing.fake_storage import FakeStorage
from tests.support.fake_dataset import FakeLocalPayloads

ROWS = [b"0,1.5,x", b"1,2.5,y"]


def read(storage: FakeStorage, section: dict[str, Any], *, local: bool) -> dict[str, list[Any]]:
    data = {"dataset_id": "rows", "preprocessing": {"format": "csv", "columns": {"a": "number", "b": "category"}, **section}}
    payloads = FakeLocalPayloads(storage) if local else storage.payload_client()
    (batch,) = load_keys([0, 1], data, payloads=payloads)
    assert batch.columns is not None
    return {name: batch.columns.column(name).to_pylist() for name in ("a", "b")}


def storage_of(*names: str) -> FakeStorage:
    storage = FakeStorage()
    storage.add_dataset("rows")
    storage.datasets["rows"].schema = DatasetSchema("csv", tuple(map(SchemaColumn, names)), "0.csv") if names else None
    storage.add_samples("rows", [1, 2], payloads=ROWS)
    return storage


@pytest.mark.parametrize("local", [False, True], ids=["flight", "local"])
def test_fields_have_the_names_that_files_give(local: bool) -> None:
    assert read(storage_of("y", "a", "b"), {}, local=local) == {"a": [1.5, 2.5], "b": ["x", "y"]}
    assert read(storage_of("b", "a", ""), {}, local=local) == {"a": [1.5, 2.5], "b": ["0", "1"]}
    assert read(storage_of(), {"names": ["y", "a", "b"]}, local=local) == {"a": [1.5, 2.5], "b": ["x", "y"]}


@pytest.mark.parametrize(
    ("files", "section", "message"),
    [
        (
            ("y", "a", "b"),
            {"names": ["y", "b", "a"]},
            "names: 'y', 'b', 'a' are not the columns that .* 'rows' name: 'y', 'a', 'b'",
        ),
        (("y", "a", "c"), {}, "columns.b: the files of dataset 'rows' do not name it. They name 'y', 'a', 'c'"),
        (("b", "a", "b"), {}, "columns.b: the files of dataset 'rows' name it twice"),
        ((), {}, "names: is required: the first lines of the files of dataset 'rows' name no columns"),
    ],
)
def test_what_contradicts_the_files_is_refused(files: tuple[str, ...], section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"preprocessing.{message}"):
        read(storage_of(*files), section, local=True)


JSON: dict[str, Any] = {"format": "json", "columns": {"a": "number", "b": "number"}}


def read_json(storage: FakeStorage, on_bad_sample: str = "fail") -> list[int]:
    data = {"dataset_id": "rows", "preprocessing": JSON, "on_bad_sample": on_bad_sample}
    return [key for batch in load_keys([0, 1], data, payloads=storage.payload_client()) for key in batch.keys.tolist()]


def json_storage(schema: DatasetSchema | None, *payloads: bytes) -> FakeStorage:
    storage = FakeStorage()
    storage.add_dataset("rows")
    storage.datasets["rows"].schema = schema
    storage.add_samples("rows", [1, 2], payloads=payloads)
    return storage


def test_a_field_that_no_object_of_a_file_has_is_refused() -> None:
    schema = replace(DatasetSchema("json", (SchemaColumn("a"),), "0.jsonl"), names_all=True)
    with pytest.raises(
        ConfigError,
        match=r"no object in the first lines of 0\.jsonl, as it was when it decided the fields of dataset 'rows', has this field",
    ):
        read_json(json_storage(schema, b'{"a": 1}', b'{"a": 2}'))
    lacking = replace(schema, some_lines=("b",), lacking=(LackingFile("3.jsonl", ("b",), ("a",)),))
    with pytest.raises(
        ConfigError, match=r"lines of 3\.jsonl of dataset 'rows' has this field. The fields there are 'a'; `columns` are 'a', 'b'"
    ):
        read_json(json_storage(lacking, b'{"a": 1}', b'{"a": 2}'))
    some = replace(schema, some_lines=("b",))
    assert read_json(json_storage(some, b'{"a": 1, "b": 2}', b'{"a": 2}')) == [0, 1]


def test_a_record_without_a_field_is_a_bad_sample_by_name() -> None:
    """Records have no schema, nor do files of one object."""
    assert read_json(json_storage(None, b'{"a": 1, "b": null}', b'{"b": 1, "c": 3, "a": 2}')) == [0, 1]
    renamed = json_storage(None, b'{"a": 1, "b": 2}', b'{"a": 2, "B": 2}')
    with pytest.raises(DataError, match="sample 1 of dataset 'rows': there is no column 'b'; its fields are a, B. Write null"):
        read_json(renamed)
    assert read_json(renamed, "skip") == [0]
