"""Rows of CSV are read by the names that the files of their dataset give."""

from __future__ import annotations

from typing import Any

import pytest

from modyn.dataset.key_loader import load_keys
from modyn.errors import ConfigError
from modyn.storage.client import DatasetSchema, SchemaColumn
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
        (("y", "a", "b"), {"names": ["y", "b", "a"]}, "names: y, b, a are not the columns that .* 'rows' name: y, a, b"),
        (("y", "a", "c"), {}, "columns.b: the files of dataset 'rows' do not name it. They name y, a, c"),
        (("b", "a", "b"), {}, "columns.b: the files of dataset 'rows' name it twice"),
        ((), {}, "names: is required: the first lines of the files of dataset 'rows' name no columns"),
    ],
)
def test_what_contradicts_the_files_is_refused(files: tuple[str, ...], section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"preprocessing.{message}"):
        read(storage_of(*files), section, local=True)
