"""Labels that a served run takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from modyn.config.system import SystemConfig
from modyn.errors import InvalidArgumentError
from modyn.serving.run_part import RunPart, ServingClients
from modyn.serving.served_model import served_model
from modyn.testing.fake_storage import FakeStorage

NOT_CALLED: Any = None
MLP = {"id": "MLP", "config": {"input_size": 4, "hidden_sizes": [8], "num_classes": 2}}
OWN = {"id": "model-of-a-plug-in"}


def part(folder: Path, loss: str, model: dict[str, Any] = MLP, *, float_labels: bool = False, **data: Any) -> RunPart:
    storage = FakeStorage()
    storage.add_dataset("seen", float_labels, records=True)
    pipeline = {
        "model": model,
        "data": {"dataset_id": "d", **data},
        "training": {"optimization_criterion": {"name": loss}},
        "serving": {"observations": "seen"},
    }
    clients = ServingClients(NOT_CALLED, storage.client(), NOT_CALLED)
    return RunPart(SystemConfig(state_dir=folder), served_model("clicks-0001", pipeline, {}), clients)


def check(made: RunPart, label: float) -> None:
    assert made.intake is not None
    try:
        made.intake.check_label(label)
    finally:
        made.close()


def test_labels_that_are_not_a_class_are_refused_unless_a_function_makes_classes(tmp_path: Path) -> None:
    check(part(tmp_path, "CrossEntropyLoss"), 1)
    with pytest.raises(InvalidArgumentError, match=r"the label is 99, and the model has 2 classes \(0 to 1\)"):
        check(part(tmp_path, "CrossEntropyLoss"), 99)
    check(part(tmp_path, "CrossEntropyLoss", OWN), 99)
    with pytest.raises(InvalidArgumentError, match="the label is -1, and classes are whole numbers from 0 on"):
        check(part(tmp_path, "CrossEntropyLoss", OWN), -1)
    transformer = "def label_transformer_function(labels):\n    return labels % 2"
    check(part(tmp_path, "CrossEntropyLoss", label_transformer_function=transformer), 99)


@pytest.mark.parametrize(
    ("loss", "float_labels", "warned"), [("MSELoss", False, True), ("MSELoss", True, False), ("CrossEntropyLoss", False, False)]
)
def test_a_regression_with_whole_labels_is_warned_of(tmp_path: Path, loss: str, float_labels: bool, warned: bool) -> None:
    with capture_logs() as lines:
        part(tmp_path, loss, float_labels=float_labels).close()
    assert [line["dataset"] for line in lines if line["event"] == "labels_are_whole_numbers"] == ["seen"] * warned
