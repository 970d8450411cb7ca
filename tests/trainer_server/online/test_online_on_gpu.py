"""Steps on a GPU come to what the same steps come to on the CPU: with drawn history, features of columns, snapshots and rollbacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from modyn.models.weights import read_statistics
from tests.support.column_samples import DENSE, SPARSE, ColumnData, column_pipeline
from tests.support.training import Outcome, TrainingRoom
from tests.trainer_server.online.test_online_trainings import online_pipeline
from tests.trainer_server.online.test_step_guard import ROLLBACK, data

pytestmark = pytest.mark.gpu


def trained(folder: Path, pipeline: dict[str, Any], samples: Any, device: str) -> tuple[TrainingRoom, Outcome]:
    """A parent that is trained on the CPU, and steps from it on `device`."""
    folder.mkdir()
    room = TrainingRoom(folder)
    parent = room.train(pipeline, samples(0)).trained.model_id
    training = {**pipeline["training"], "device": device}
    return room, room.train({**pipeline, "training": training}, samples(1), trigger_id=1, parent_model_id=parent, online=True)


def assert_alike(one: Outcome, other: Outcome) -> None:
    for name, tensor in one.weights.items():
        torch.testing.assert_close(other.weights[name].cpu(), tensor, rtol=1e-3, atol=1e-5)
    left, right = one.result["prequential"], other.result["prequential"]
    assert left["num"] == right["num"]
    torch.testing.assert_close(torch.tensor(left["loss"]), torch.tensor(right["loss"]), rtol=1e-3, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("online", [{}, {"history_samples": 3}, ROLLBACK, {"history_samples": 2, "update_samples": 2}])
def test_steps_and_rollbacks(online: dict[str, Any], tmp_path: Path) -> None:
    spoilt = frozenset(range(22, 24)) if "rollback" in online else frozenset()
    samples = lambda number: data(number, spoilt=spoilt if number else frozenset())  # noqa: E731
    pipeline = online_pipeline(0.1, online)
    _, on_cpu = trained(tmp_path / "cpu", pipeline, samples, "cpu")
    _, on_gpu = trained(tmp_path / "gpu", pipeline, samples, "cuda:0")
    assert_alike(on_cpu, on_gpu)
    for outcome in (on_cpu, on_gpu):
        rollbacks = outcome.result.get("step_guard", {"rollbacks": []})["rollbacks"]
        assert [(each["step"], each["to_step"]) for each in rollbacks] == ([(8, 4)] if spoilt else [])


@pytest.mark.parametrize("section", [DENSE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("rollback", [{}, ROLLBACK], ids=["plain", "guarded"])
def test_statistics_and_features(section: dict[str, Any], rollback: dict[str, Any], tmp_path: Path) -> None:
    online = {"trigger": {"id": "DataAmountTrigger", "num_samples": 40}, "step_samples": 4, **rollback}
    pipeline = {**column_pipeline(section), "online": online}

    def samples(number: int) -> ColumnData:
        return ColumnData(40, trigger_id=number)

    found = [trained(tmp_path / device[:4], pipeline, samples, device) for device in ("cpu", "cuda:0")]
    assert_alike(found[0][1], found[1][1])
    kept = []
    for room, outcome in found:
        path = room.folder / "statistics.safetensors"
        room.models.get(outcome.trained.model_id, path)
        kept.append(read_statistics(path))
    assert kept[0] is not None
    assert kept[0] == kept[1]
