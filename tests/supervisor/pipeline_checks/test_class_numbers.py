"""Datasets with named classes: the model has enough classes, and all datasets of a pipeline number them alike."""

from __future__ import annotations

from typing import Any, cast

import pytest

from modyn.config.base import Severity
from modyn.config.dataset import DatasetConfig
from modyn.storage.client import DatasetSchema
from modyn.supervisor.pipeline_checks.validation import check_references
from modyn.testing.fake_storage import FakeStorage
from modyn.testing.fakes import FakeModelStorage
from modyn.testing.held_dataset import HeldDataset


def problems(train: tuple[str, ...], test: tuple[str, ...], num_classes: int = 3, **transformer: str) -> list[Any]:
    storage = FakeStorage()
    for name, classes in (("train", train), ("test", test)):
        config = DatasetConfig(name=name, base_path=f"/fake/{name}", file_wrapper="image_folder")
        storage.datasets[name] = HeldDataset(config, False, schema=DatasetSchema("unknown", (), classes=classes))
    pipeline = {
        "model": {"id": "ResNet18", "config": {"num_classes": num_classes}},
        "data": {"dataset_id": "train"},
        "training": {"optimization_criterion": {"name": "CrossEntropyLoss"}},
        "evaluation": {"datasets": [{"dataset_id": "test", **transformer}]},
    }
    return check_references(pipeline, storage.client(), cast("Any", FakeModelStorage()))


@pytest.mark.parametrize("test", [("a", "b", "c"), ("a", "b"), ("a", "b", "c", "d"), ()])
def test_equal_numbers_are_right(test: tuple[str, ...]) -> None:
    assert problems(("a", "b", "c"), test) == []


def test_a_class_with_another_number_is_a_mistake() -> None:
    (found,) = problems(("a", "b", "c"), ("a", "c"))
    assert (found.path, found.severity) == ("evaluation.datasets.0.dataset_id", Severity.ERROR)
    assert found.message.startswith(
        "class 1 of dataset 'test' is 'c', and of 'train', which the model learns, 'b': register it again with the option"
    )
    assert problems(("a", "b", "c"), ("a", "c"), label_transformer_function="a.b:c") == []


def test_a_model_of_too_few_classes_is_named() -> None:
    (found,) = problems(("a", "b", "c"), (), num_classes=2)
    assert (found.path, found.severity) == ("model.config.num_classes", Severity.WARNING)
    assert found.message.startswith("dataset 'train' has 3 classes, and the model 2")
