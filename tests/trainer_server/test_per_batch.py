"""What the training loop must not do for each batch, however long the training, and what a server must not keep for each training."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from modyn.records import RunId
from modyn.testing.training import MemoryData, small_pipeline, train_in_memory
from modyn.trainer_server import hooks
from modyn.trainer_server import trainings as trainings_module
from modyn.trainer_server.client import TrainingRequest, TrainingState
from modyn.trainer_server.trainings import Trainings
from modyn.workers import WorkerPool


class ReadingBack(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts how often a value of a tensor is read by Python: on a GPU, each such reading waits for all that was begun there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += int(func is torch.ops.aten._local_scalar_dense.default)
        return func(*args, **(kwargs or {}))


def readings(folder: Path, num_keys: int) -> int:
    pipeline = small_pipeline(
        {
            "shuffle": True,
            "lr_scheduler": {"name": "ExponentialLR", "step_every": "batch", "config": {"gamma": 0.99}},
            "gradient_clip_norm": 1.0,
        }
    )
    folder.mkdir()
    with ReadingBack() as mode:
        found = train_in_memory(pipeline, MemoryData(num_keys), folder)
    assert found.result["num_batches"] == num_keys // 8
    return int(mode.count)


def test_a_batch_waits_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses are read at the end of an epoch and when progress is told, which is by time; a batch reads nothing back from the device."""
    monkeypatch.setattr(hooks, "REPORT_INTERVAL_S", 1e9)
    assert readings(tmp_path / "short", 40) == readings(tmp_path / "long", 640)


def test_the_count_would_notice(tmp_path: Path) -> None:
    with ReadingBack() as mode:
        torch.ones(3).sum().item()
        if torch.ones(1) > 0:
            torch.ones(1).tolist()
    assert mode.count >= 2


def test_a_server_remembers_a_bounded_number_of_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What older ones made is in model storage, where they are found again."""
    monkeypatch.setattr(trainings_module, "KEPT", 5)
    pool = WorkerPool(1)
    closed = threading.Event()

    def refuse(run_id: RunId, trigger_id: int) -> None:
        closed.set()

    trainings = Trainings(
        pool, pool, task="none:none", check_task="none:none", make_request=lambda r: r, find_model=refuse, log_dir=tmp_path
    )
    pool.close(0)
    for trigger_id in range(20):
        request = TrainingRequest(RunId("r-0001"), trigger_id, {"model": {}, "training": {}, "data": {}})
        with pytest.raises(Exception, match="shutting down"):
            trainings.start(request)
    assert closed.is_set()
    assert len(trainings._statuses) == 5
    assert [status.state for status in trainings._statuses.values()] == [TrainingState.FAILED] * 5
    assert [trigger_id for _, trigger_id in trainings._statuses] == [15, 16, 17, 18, 19]
