"""Trainings of steps, on samples in memory: what is tested and kept in any case."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from modyn.models.weights import build_model
from tests.support.training import NUM_CLASSES, MemoryData, NoModel, TrainingRoom, features_of, small_pipeline

STEP = 4


def online_pipeline(lr: float, online: dict[str, Any] | None = None, **training: Any) -> dict[str, Any]:
    optimizer = {"name": "default", "algorithm": "SGD", "param_groups": [{"module": "model", "config": {"lr": lr}}]}
    section = {"trigger": {"id": "DataAmountTrigger", "num_samples": 40}, "step_samples": STEP, **(online or {})}
    return small_pipeline({"optimizers": [optimizer], **training}, online=section)


def test_steps_that_pause_only_test(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    parent = room.train(online_pipeline(0.1)).trained.model_id
    asked: dict[str, Any] = {"online": True, "tests_only": True, "parent_model_id": parent}
    pipeline = online_pipeline(0.1, {"history_samples": 3})
    found = []
    for number in (1, 2):
        with pytest.raises(NoModel, match="only tested") as ended:
            room.train(pipeline, MemoryData(num_keys=13, trigger_id=number), trigger_id=number, **asked)
        found.append(ended.value.result)
    assert found[0]["prequential"] == found[1]["prequential"]
    assert found[0]["prequential"]["num"] == [4, 4, 4, 1]
    assert (found[0]["num_tested"], found[0]["num_samples"], found[0]["num_steps"]) == (13, 0, 0)
    # In evaluation mode, by the weights of the parent.
    model = build_model("MLP", pipeline["model"]["config"])
    model.load_state_dict(room.weights_of(parent))
    data = torch.from_numpy(np.stack([features_of(key) for key in range(13)]))
    output, labels = model(data), torch.arange(13) % NUM_CLASSES
    wrong = output.argmax(1) != labels
    losses = nn.functional.cross_entropy(output, labels, reduction="none").detach()
    assert found[0]["prequential"]["loss"] == pytest.approx(
        [float(losses[at : at + STEP].sum()) for at in range(0, 13, STEP)], rel=1e-5
    )
    assert found[0]["prequential"]["errors"] == [int(wrong[at : at + STEP].sum()) for at in range(0, 13, STEP)]
    # The end of the first was seen, and the second's is kept for an attempt that was not.
    assert [path.name for path in (tmp_path / "finished").iterdir()] == ["memory-0001.2.json"]
    with pytest.raises(NoModel):
        room.train(pipeline, MemoryData(num_keys=13, trigger_id=2, deleted=frozenset(range(13))), trigger_id=2, **asked)


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
    tested = found.value.result["prequential"]
    # The first step is tested by the parent, as that of the other training; the numbers end where the loss is none.
    assert tested["loss"][0] == pytest.approx(well.result["prequential"]["loss"][0])
    assert 1 <= len(tested["num"]) < 40 // STEP
    assert all(map(math.isfinite, tested["loss"]))
    assert tested["num"] == [STEP] * len(tested["loss"])
    assert len(tested["errors"]) == len(tested["num"])
    assert found.value.result["num_samples"] == 0
