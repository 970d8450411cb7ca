"""Steps that are undone together with the statistics of preprocessing that belong to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from modyn.errors import CancelledError
from tests.support.column_samples import DENSE, ColumnData, column_pipeline, json_row, row_of
from tests.support.training import Outcome, RecordedReport, TrainingRoom

POISON = 50
ONLINE: dict[str, Any] = {
    "trigger": {"id": "DataAmountTrigger", "num_samples": 40},
    "step_samples": 4,
    "history_samples": 2,
    "rollback": {"every": 2, "window": 40, "factor": 1.2},
}
KEYS = tuple(key for new in range(40, 72, 4) for key in (*range(new, new + 4), new - 40, new - 39))


def poisoned(key: int) -> bytes:
    return json.dumps({**row_of(key), "income": 1e30}).encode() if key == POISON else json_row(key)


def steps(folder: Path, stop_after: int | None = None, payload: Any = poisoned, **online: Any) -> Outcome:
    folder.mkdir()
    room = TrainingRoom(folder)
    training = {"epochs_per_trigger": 1, "checkpointing": {"activated": True, "interval": 1}}
    pipeline = column_pipeline(DENSE, training, online={**ONLINE, **online})
    parent = room.train(pipeline, ColumnData(40)).trained.model_id
    rest: dict[str, Any] = {"trigger_id": 1, "parent_model_id": parent, "online": True}
    data = ColumnData(len(KEYS), keys=KEYS, trigger_id=1, payload=payload)
    if stop_after is not None:
        with pytest.raises(CancelledError):
            room.train(pipeline, data, RecordedReport(stop_after), **rest)
    return room.train(pipeline, data, **rest)


@pytest.mark.parametrize("online", [{}, {"update_samples": 2}])
@pytest.mark.parametrize("stop_after", [2, 3, 5])
def test_weights_and_statistics_are_those_of_a_training_that_was_left_alone(
    stop_after: int, online: dict[str, Any], tmp_path: Path
) -> None:
    alone, stopped = steps(tmp_path / "alone", **online), steps(tmp_path / "stopped", stop_after, **online)
    assert repr(stopped.result["step_guard"]) == repr(alone.result["step_guard"])
    assert all(torch.equal(alone.weights[name], stopped.weights[name]) for name in alone.weights)
    assert alone.trained.weights_sha256 == stopped.trained.weights_sha256  # with the statistics


def learnable(key: int, poison: float | None = None) -> bytes:
    """Columns by which the label, key % 10, can be learned; the poison in place of one number of one sample."""
    value = float(key % 10)
    row = {"age": value if poison is None or key != POISON else poison, "income": (value - 4.5) ** 2, "site": "a"}
    return json.dumps(row).encode()


@pytest.mark.parametrize("value", [1e6, 1e30, 1e100])
def test_statistics_that_one_value_spoils_are_undone(value: float, tmp_path: Path) -> None:
    """By the snapshot's own statistics its loss is as before; by those since, both would err alike."""
    found = learned(tmp_path, DENSE, value, ONLINE)
    undone = found.result["step_guard"]["rollbacks"][0]
    assert undone["snapshot_loss"] < (undone["running"] + undone["compared_loss"]) / 2
    assert found.result["preprocessing"]["rows"] < 40 + 32, "those of the undone steps are not counted"


@pytest.mark.parametrize("stop_after", [None, 2, 3, 5])
def test_of_a_value_far_outside_of_all_before_one_step_is_undone(stop_after: int | None, tmp_path: Path) -> None:
    """A snapshot is taken right before its step, and the step is checked by itself, however many lie between two snapshots."""
    section = {**DENSE, "components": [{"id": "InputGuard", "warm_up_rows": 20}, *DENSE["components"]]}
    online = {**ONLINE, "rollback": {"every": 100, "window": 40, "factor": 1.2}}
    found = learned(tmp_path, section, 1e30, online, stop_after).result
    assert [(each["step"], each["to_step"]) for each in found["step_guard"]["rollbacks"]] == [(3, 2)]
    assert found["preprocessing"]["rows"] == 40 + 32 - 4
    assert found["step_guard"]["snapshots"] == 2, "one before the step, one at the end"


def learned(
    folder: Path, section: dict[str, Any], value: float, online: dict[str, Any], stop_after: int | None = None
) -> Outcome:
    """A stretch of 8 steps without history behind a model that has learned its columns; one value is the poison."""
    room = TrainingRoom(folder)
    optimizer = {"name": "default", "algorithm": "SGD", "param_groups": [{"module": "model", "config": {"lr": 0.1}}]}
    training = {"epochs_per_trigger": 150, "optimizers": [optimizer], "checkpointing": {"activated": True, "interval": 1}}
    pipeline = column_pipeline(section, training, online={**online, "history_samples": 0})
    parent = room.train(pipeline, ColumnData(40, payload=learnable)).trained.model_id
    data = ColumnData(32, keys=tuple(range(40, 72)), trigger_id=1, payload=lambda key: learnable(key, value))
    rest: dict[str, Any] = {"trigger_id": 1, "parent_model_id": parent, "online": True}
    if stop_after is not None:
        with pytest.raises(CancelledError):
            room.train(pipeline, data, RecordedReport(stop_after), **rest)
    return room.train(pipeline, data, **rest)
