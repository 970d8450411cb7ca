"""Trainings in one session are those of separate processes: equal weights, and no setting of one reaches the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from modyn.errors import ConfigError
from modyn.model_storage.client import StoredModelInfo
from modyn.records import RunId
from modyn.trainer_server.client import TrainingRequest
from modyn.trainer_server.trainings import session_key
from modyn.workers import JobSpec, SessionRules, WorkerPool
from tests.support.preloaded import PRELOADED
from tests.support.training import MemoryData, RecordedReport, TrainingRoom, small_pipeline

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

HERE = Path(__file__).parent

CARELESS = """
def label_transformer_function(labels):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(1)
    torch.set_num_threads(2)
    np.random.seed(1)
    torch.use_deterministic_algorithms(False)
    return labels
"""


@pytest.fixture(autouse=True)
def tasks_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)


def train_three(pipeline: dict[str, Any], folder: Path, session: str | None) -> tuple[list[str], int]:
    """Hashes of the weights of three trainings, and how many processes made them."""
    pool = WorkerPool(1, preload=PRELOADED, rules=SessionRules(idle_s=600.0))
    hashes, workers = list[str](), set[int | None]()
    for trigger in range(3):
        request = (pipeline, MemoryData(num_keys=40 + 8 * trigger), str(folder / f"{session}-{trigger}"), 0.0)
        job = pool.submit(JobSpec("trainer_tasks:train", request, name="training", log_path=folder / "log", session=session))
        stored: StoredModelInfo = job.result(60)
        hashes.append(stored.version.weights_sha256)
        workers.add(job.worker_pid)
    pool.close()
    return hashes, len(workers)


@pytest.mark.parametrize("careless", [False, True])
def test_three_trainings_in_one_session_equal_three_in_three_processes(tmp_path: Path, careless: bool) -> None:
    data = {"dataset_id": "fake", "record_layout": {"dtype": "float32", "shape": [6]}}
    section = data | {"label_transformer_function": CARELESS} if careless else data
    pipeline = small_pipeline({"shuffle": True, "epochs_per_trigger": 2}, data=section)
    together, processes = train_three(pipeline, tmp_path, "a")
    apart, more_processes = train_three(pipeline, tmp_path, None)
    assert (processes, more_processes) == (1, 3)
    assert together == apart
    assert len(set(together)) == 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device exists")
def test_cuda_means_the_gpu_that_the_job_was_placed_on(tmp_path: Path) -> None:
    report = RecordedReport()
    report.device = "cuda:3"
    with pytest.raises(ConfigError, match=r"training\.device: 'cuda:3' does not exist"):
        TrainingRoom(tmp_path).train(small_pipeline({"device": "cuda"}), report=report)


def test_a_session_is_of_one_run_and_one_pipeline() -> None:
    pipeline = small_pipeline()
    first = TrainingRequest(RunId("a-0001"), 0, pipeline)
    assert session_key(first) == session_key(TrainingRequest(RunId("a-0001"), 7, dict(reversed(pipeline.items())), 3))
    others = [
        TrainingRequest(RunId("a-0002"), 0, pipeline),
        TrainingRequest(RunId("a-0001"), 0, small_pipeline({"batch_size": 9})),
        TrainingRequest(RunId("a-0001"), 0, pipeline, seed=1),
    ]
    assert len({session_key(request) for request in (first, *others)}) == 4
