"""Columns that the section `preprocessing` names and files do not have are found when the pipeline is checked and submitted."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from modyn.config.pipeline import load_pipeline
from modyn.errors import ConfigError, DataError, UnavailableError
from modyn.storage.client import DatasetSchema, LackingFile, SchemaColumn
from modyn.supervisor.pipeline_checks.validation import check_pipeline, check_references, checked_references
from modyn.testing.fake_storage import FakeStorage, FakeStorageClient
from modyn.testing.fakes import FakeModelStorage
from modyn.testing.services import pipeline_yaml

if TYPE_CHECKING:
    from modyn.model_storage.client import ModelStorageClient

MODELS = cast("ModelStorageClient", FakeModelStorage())


def schema(payloads: Any, *names: str) -> DatasetSchema:
    return DatasetSchema(payloads, tuple(map(SchemaColumn, names)), "0.csv")


def storage_with(**schemas: DatasetSchema | None) -> FakeStorage:
    storage = FakeStorage()
    for name, found in schemas.items():
        storage.add_dataset(name)
        storage.datasets[name].schema = found
        storage.add_samples(name, range(4), [0] * 4, [b"0,1,2"] * 4)
    return storage


def pipeline(preprocessing: dict[str, Any], *tests: str) -> str:
    datasets = [{"dataset_id": name, "batch_size": 4, "metrics": [{"name": "Accuracy"}]} for name in tests]
    handler = {"name": "all", "execution_time": "after_pipeline", "models": "matrix", "datasets": list(tests)}
    evaluation = {
        "datasets": datasets,
        "handlers": [{**handler, "strategy": {"type": "StaticEvalStrategy", "intervals": [[0, 9]]}}],
    }
    sections = {"evaluation": evaluation} if tests else {}
    return pipeline_yaml(data={"dataset_id": "train"}, preprocessing={"columns": {"a": "number"}, **preprocessing}, **sections)


def check(storage: FakeStorage, preprocessing: dict[str, Any], *tests: str) -> list[str]:
    references = partial(check_references, storage=storage.client(), model_storage=MODELS)
    return [str(problem) for problem in check_pipeline(pipeline(preprocessing, *tests), "p.yaml", [], references)]


CSV = schema("csv", "y", "a", "b")


@pytest.mark.parametrize(
    ("found", "preprocessing", "message"),
    [
        (
            CSV,
            {"format": "csv", "names": ["y", "b", "a"]},
            "preprocessing.names: 'y', 'b', 'a' are not the columns that the files of dataset 'train' name: 'y', 'a', 'b'",
        ),
        (CSV, {"format": "csv", "names": ["a", "b"]}, "preprocessing.names: 'a', 'b' are not the columns .* name: 'y', 'a', 'b'"),
        (
            CSV,
            {"format": "csv", "columns": {"A": "number"}},
            "preprocessing.columns.A: the files of dataset 'train' do not name it, did you mean 'a'\\?",
        ),
        (schema("csv", "a", "a"), {"format": "csv"}, "preprocessing.columns.a: the files of dataset 'train' name it twice"),
        (
            None,
            {"format": "csv"},
            "preprocessing.names: is required: the first lines of the files of dataset 'train' name no columns",
        ),
        (
            schema("json", "y"),
            {"format": "json"},
            "warning: preprocessing.columns.a: the first file of dataset 'train' does not have this field",
        ),
    ],
)
def test_columns_that_contradict_the_files_are_found(
    found: DatasetSchema | None, preprocessing: dict[str, Any], message: str
) -> None:
    (problem,) = check(storage_with(train=found), preprocessing)
    assert re.search(message, problem)


JSON = replace(
    schema("json", "y", "a"),
    some_lines=("b", "c"),
    names_all=True,
    lacking=(LackingFile("2.jsonl", ("c",), ("y", "a", "b")), LackingFile("3.jsonl", ("c",), ("y", "b"))),
)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            "B",
            "preprocessing.columns.B: no object in the first lines of 0.csv, as it was when it decided the fields of dataset "
            "'train', has this field, did you mean 'b'? The fields there are 'y', 'a', 'b', 'c'; `columns` are 'a', 'B'. "
            "Correct the name, or write the field in each file",
        ),
        (
            "c",
            "preprocessing.columns.c: no object in the first lines of 2.jsonl and of others of dataset 'train' has this field",
        ),
        ("b", "warning: preprocessing.columns.b: the first file of dataset 'train' does not have this field in each line"),
    ],
)
def test_a_json_field_that_no_object_of_a_file_has_is_refused_with_both_lists(column: str, message: str) -> None:
    storage = storage_with(train=JSON)
    preprocessing = {"format": "json", "columns": {"a": "number", column: "number"}}
    (problem,) = check(storage, preprocessing)
    assert message in problem
    submitted = partial(checked_references, load_pipeline(pipeline(preprocessing), "p.yaml"), storage.client(), MODELS)
    if message.startswith("warning"):
        assert message in str(*submitted())
    else:
        with pytest.raises(ConfigError, match=rf"preprocessing\.columns\.{column}: no object in the first lines"):
            submitted()


@pytest.mark.parametrize(
    ("found", "preprocessing"),
    [
        (CSV, {"format": "csv"}),
        (CSV, {"format": "csv", "names": ["y", "a", "b"]}),
        (None, {"format": "csv", "names": ["y", "a"]}),
        (schema("json", "y", "a"), {"format": "json"}),
        (schema("values", "x"), {"format": "csv", "names": ["y", "a"]}),
    ],
)
def test_columns_that_the_files_have_are_right(found: DatasetSchema | None, preprocessing: dict[str, Any]) -> None:
    assert check(storage_with(train=found), preprocessing) == []


def test_each_dataset_that_is_evaluated_on_is_looked_at() -> None:
    storage = storage_with(train=CSV, test=schema("csv", "b", "y", "a"), other=schema("csv", "b", "y"))
    (problem,) = check(storage, {"format": "csv"}, "test", "other")
    assert "preprocessing.columns.a: the files of dataset 'other' do not name it" in problem


def test_a_dataset_without_samples_is_not_judged_yet() -> None:
    storage = FakeStorage()
    storage.add_dataset("train")
    assert check(storage, {"format": "csv"}) == []


def test_what_contradicts_is_refused_when_it_is_submitted() -> None:
    storage = storage_with(train=CSV)
    text = pipeline({"format": "csv", "names": ["y", "b", "a"]})
    with pytest.raises(ConfigError, match="preprocessing.names: 'y', 'b', 'a' are not the columns"):
        checked_references(load_pipeline(text, "p.yaml"), storage.client(), MODELS)


def csv_storage(
    names: DatasetSchema | None = None, num_fields: int = 3, wrapper: str = "CsvFileWrapper", **options: Any
) -> FakeStorage:
    storage = FakeStorage()
    storage.add_dataset("train")
    found = storage.datasets["train"]
    found.schema = names
    found.config = found.config.model_copy(update={"file_wrapper": wrapper, "file_wrapper_config": {"label_index": 0, **options}})
    storage.add_samples("train", [1], columns={str(number): ["0"] for number in range(num_fields)})
    return storage


@pytest.mark.parametrize(
    ("options", "preprocessing", "message"),
    [
        (
            {"separator": ";"},
            {},
            'preprocessing.separator: is ",", and rows of dataset \'train\' are separated by ";": write ";"',
        ),
        ({"separator": ";"}, {"separator": ":"}, 'is ":", and rows of dataset \'train\' are separated by ";": write ";"'),
        ({}, {"separator": ";"}, 'is ";", and rows of dataset \'train\' are separated by ",": write ","'),
        (
            {"wrapper": "JsonLinesFileWrapper"},
            {},
            "preprocessing.format: is csv, and rows of dataset 'train' are json: write json",
        ),
        ({}, {"format": "json", "names": None}, "preprocessing.format: is json, and rows of dataset 'train' are csv: write csv"),
        (
            {"quote": "'"},
            {},
            "warning: preprocessing.format: reads \" as the quote, and rows of dataset 'train' have the quote '; write files with the quote \"",
        ),
        ({"quote": ""}, {}, "and rows of dataset 'train' have no quotes; write"),
        (
            {"encoding": "latin-1"},
            {"columns": {"a": "category"}},
            "warning: preprocessing.columns.a: is read as UTF-8, and rows of dataset 'train' are in latin-1: .*; convert the files to UTF-8",
        ),
        (
            {"num_fields": 4},
            {},
            "preprocessing.names: has 3 names, and rows of dataset 'train' have 4 fields: write the names of all fields",
        ),
        ({"num_fields": 2}, {}, "preprocessing.names: has 3 names, and rows of dataset 'train' have 2 fields"),
        ({"num_fields": 300}, {}, "preprocessing.names: has 3 names, and rows of dataset 'train' have 300 fields"),
    ],
)
def test_another_form_of_rows_is_found_by_the_options_of_the_dataset(
    options: dict[str, Any], preprocessing: dict[str, Any], message: str
) -> None:
    section = {"format": "csv", "names": ["y", "a", "b"], **preprocessing}
    section = {key: value for key, value in section.items() if value is not None}
    (problem,) = check(csv_storage(**options), section)
    assert re.search(message, problem)


@pytest.mark.parametrize(
    ("options", "preprocessing"),
    [
        ({}, {}),
        ({"separator": ";"}, {"separator": ";"}),
        ({"encoding": "latin-1"}, {}),  # A number has ASCII characters only.
        ({"encoding": "UTF8"}, {"columns": {"a": "text"}}),
        ({"names": CSV, "num_fields": 0}, {}),
    ],
)
def test_a_section_with_the_form_of_the_rows_is_right(options: dict[str, Any], preprocessing: dict[str, Any]) -> None:
    assert check(csv_storage(**options), {"format": "csv", "names": ["y", "a", "b"], **preprocessing}) == []


def test_deleted_rows_and_rows_that_cannot_be_read_have_no_known_number_of_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    section = {"format": "csv", "names": ["y", "a", "b"]}
    storage = csv_storage(num_fields=9)
    for error in (None, DataError("gone"), UnavailableError("down")):

        def answer(self: object, *_: object, error: Exception | None = error) -> list[str]:
            if error is not None:
                raise error
            return []

        monkeypatch.setattr(FakeStorageClient, "column_names", answer)
        assert check(storage, section) == []


def test_another_separator_is_refused_when_it_is_submitted() -> None:
    text = pipeline({"format": "csv", "names": ["y", "a", "b"]})
    with pytest.raises(ConfigError, match=r'preprocessing.separator: is ",", and rows of dataset'):
        checked_references(load_pipeline(text, "p.yaml"), csv_storage(separator=";").client(), MODELS)
