"""Trainings of steps, on samples in memory: what is tested and kept whatever becomes of the steps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.support.training import MemoryData, NoModel, TrainingRoom, small_pipeline

STEP = 4


def online_pipeline(lr: float, online: dict[str, Any] | None = None, **training: Any) -> dict[str, Any]:
    optimizer = {"name": "default", "algorithm": "SGD", "param_groups": [{"module": "model", "config": {"lr": lr}}]}
    section = {"trigger": {"id": "DataAmountTrigger", "num_samples": 40}, "step_samples": STEP, **(online or {})}
    return small_pipeline({"optimizers": [optimizer], **training}, online=section)


def test_what_was_tested_before_steps_diverged_is_kept(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    parent = room.train(online_pipeline(0.1)).trained.model_id
    with pytest.raises(NoModel, match="diverged") as found:
        room.train(
            online_pipeline(1e20, on_divergence="keep_previous"),
            MemoryData(trigger_id=2),
            trigger_id=2,
            parent_model_id=parent,
            online=True,
        )
    well = room.train(online_pipeline(0.1), MemoryData(trigger_id=3), trigger_id=3, parent_model_id=parent, online=True)
    tested = found.value.nothing.result["prequential"]
    # The first step is tested by the parent, as that of the other training; the numbers end where the loss is none.
    assert tested["loss"][0] == pytest.approx(well.result["prequential"]["loss"][0])
    assert 1 <= len(tested["num"]) < 40 // STEP
    assert all(map(math.isfinite, tested["loss"]))
    assert tested["num"] == [STEP] * len(tested["loss"])
    assert len(tested["errors"]) == len(tested["num"])
    assert found.value.nothing.result["num_samples"] == 0
