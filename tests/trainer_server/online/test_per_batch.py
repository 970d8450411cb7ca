"""Work that the training loop must not repeat for each batch, and data that a server must not keep for each training."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from modyn.config.system import SystemConfig
from modyn.records import JobState, RunId
from modyn.trainer_server.client import TrainingRequest
from modyn.trainer_server.trainings import Trainings
from modyn.workers import WorkerPool
from tests.support.training import MemoryData, TrainingRoom, small_pipeline

pytestmark = pytest.mark.usefixtures("preloaded_fakes")


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
        found = TrainingRoom(folder, limits={"report_interval_s": 1e9}).train(pipeline, MemoryData(num_keys))
    assert found.result["num_batches"] == num_keys // 8
    return int(mode.count)


def test_a_batch_waits_for_nothing(tmp_path: Path) -> None:
    """Losses are read at the end of an epoch and when progress is told, which is by time; a batch reads nothing back from the device."""
    assert readings(tmp_path / "short", 40) == readings(tmp_path / "long", 640)


def test_the_count_would_notice(tmp_path: Path) -> None:
    with ReadingBack() as mode:
        torch.ones(3).sum().item()
        if torch.ones(1) > 0:
            torch.ones(1).tolist()
    assert mode.count >= 2


def test_a_server_keeps_a_bounded_number_of_ended_trainings(tmp_path: Path) -> None:
    """Models of older trainings are in model storage, where they are found again."""
    pool = WorkerPool(1)
    closed = threading.Event()

    def refuse(run_id: RunId, trigger_id: int) -> None:
        closed.set()

    trainings = Trainings(SystemConfig(state_dir=tmp_path), pool, pool, refuse, num_ended=5)
    pool.close(0)
    for trigger_id in range(20):
        request = TrainingRequest(RunId("r-0001"), trigger_id, {"model": {}, "training": {}, "data": {}})
        with pytest.raises(Exception, match="shutting down"):
            trainings.start(request)
    assert closed.is_set()
    assert len(trainings.table) == 5
    kept = [trainings.table.get(("r-0001", trigger_id)) for trigger_id in range(20)]
    assert [status.state if status else None for status in kept] == [None] * 15 + [JobState.FAILED] * 5
