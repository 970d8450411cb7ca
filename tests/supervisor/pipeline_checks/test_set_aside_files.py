"""A dataset of which files are set aside is warned of before a run trains on the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from modyn.config.base import Severity
from modyn.config.dataset import DatasetConfig
from modyn.storage.client import FileProblem
from modyn.supervisor.pipeline_checks.validation import check_references
from modyn.testing.fake_storage import FakeStorage
from modyn.testing.fakes import FakeModelStorage
from modyn.testing.held_dataset import HeldDataset

if TYPE_CHECKING:
    from modyn.model_storage.client import ModelStorageClient


def test_files_that_are_set_aside_are_a_warning_of_the_check() -> None:
    storage, models = FakeStorage(), cast("ModelStorageClient", FakeModelStorage())
    fields = {"name": "d", "base_path": "/fake/d", "file_wrapper": "CsvFileWrapper", "file_wrapper_config": {"label_index": 0}}
    held = storage.datasets["d"] = HeldDataset(DatasetConfig.model_validate(fields), False)
    pipeline = {"data": {"dataset_id": "d"}, "evaluation": {"datasets": [{"dataset_id": "d"}]}}
    assert check_references(pipeline, storage.client(), models) == []
    held.problems = [FileProblem("june.csv", "it has other columns", 0)]
    found = check_references(pipeline, storage.client(), models)
    assert [(problem.path, problem.severity) for problem in found] == [
        ("data.dataset_id", Severity.WARNING),
        ("evaluation.datasets.0.dataset_id", Severity.WARNING),
    ]
    assert (
        "files of the dataset 'd' have problems (1), so that samples are missing or cannot be read; `modyn data problems d` says why"
        in found[0].message
    )
