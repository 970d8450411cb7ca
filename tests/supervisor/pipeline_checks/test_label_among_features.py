"""A label that is a column of the section `preprocessing` is refused before a model learns to read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from modyn.config.base import Severity
from modyn.config.dataset import DatasetConfig
from modyn.config.pipeline import load_pipeline
from modyn.errors import ConfigError
from modyn.supervisor.pipeline_checks.validation import check_references, checked_references
from modyn.testing.fake_storage import FakeStorage
from modyn.testing.fakes import FakeModelStorage
from modyn.testing.held_dataset import HeldDataset
from modyn.testing.services import pipeline_yaml

if TYPE_CHECKING:
    from modyn.model_storage.client import ModelStorageClient

MODELS = cast("ModelStorageClient", FakeModelStorage())


def storage_with(wrapper: str, **options: Any) -> FakeStorage:
    storage = FakeStorage()
    fields = {"name": "d", "base_path": "/fake/d", "file_wrapper": wrapper, "file_wrapper_config": options}
    storage.datasets["d"] = HeldDataset(DatasetConfig.model_validate(fields), False)
    return storage


@pytest.mark.parametrize(
    ("wrapper", "options", "section"),
    [
        ("CsvFileWrapper", {"label_index": 1}, {"format": "csv", "names": ["a", "y"]}),
        ("CsvFileWrapper", {"label_column": "y"}, {"format": "csv", "names": ["a", "y"]}),
        ("CsvFileWrapper", {"label_column": "y"}, {"format": "csv"}),
        ("JsonLinesFileWrapper", {"label_field": "y"}, {"format": "json"}),
    ],
)
def test_it_is_refused_by_the_check_and_at_submission(wrapper: str, options: dict[str, Any], section: dict[str, Any]) -> None:
    storage = storage_with(wrapper, **options).client()
    for columns, expected in (({"a": "number"}, []), ({"a": "number", "y": "number"}, ["preprocessing.columns.y"])):
        pipeline = {"data": {"dataset_id": "d"}, "preprocessing": {**section, "columns": columns}}
        found = check_references(pipeline, storage, MODELS)
        assert [problem.path for problem in found] == expected
        assert all("'y' is the label of the dataset 'd'" in problem.message for problem in found)
        section_text = {**section, "names": ["a", "y"]} if section["format"] == "csv" else section
        text = pipeline_yaml(data={"dataset_id": "d"}, preprocessing={**section_text, "columns": columns})
        if expected:
            with pytest.raises(ConfigError, match=r"preprocessing\.columns\.y: 'y' is the label"):
                checked_references(load_pipeline(text, "p.yaml"), storage, MODELS)
        else:
            assert checked_references(load_pipeline(text, "p.yaml"), storage, MODELS) == []


def test_a_dataset_that_is_evaluated_on_counts_too() -> None:
    pipeline = {
        "evaluation": {"datasets": [{"dataset_id": "d"}]},
        "preprocessing": {"format": "json", "columns": {"y": "number"}},
    }
    (found,) = check_references(pipeline, storage_with("JsonLinesFileWrapper", label_field="y").client(), MODELS)
    assert found.path == "preprocessing.columns.y"


def test_a_payload_of_numbers_that_holds_its_label_is_warned_of() -> None:
    storage = storage_with("ParquetFileWrapper", payload_columns=["a", "y"], label_column="y").client()
    (found,) = check_references({"data": {"dataset_id": "d"}}, storage, MODELS)
    assert (found.path, found.severity) == ("data.dataset_id", Severity.WARNING)
