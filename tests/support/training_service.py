"""A trainer server over gRPC, with real worker processes, whose trainings only pretend: for tests of what its clients see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modyn.config.system import SystemConfig
from modyn.config.system_sections.endpoint import Endpoint
from modyn.errors import UnavailableError
from modyn.model_storage.client import StoredModelInfo
from modyn.proto import trainer_server_pb2_grpc
from modyn.records import ModelVersion, RunId
from modyn.rpc.server import Registration, start_server
from modyn.trainer_server.client import TrainerServerClient, TrainingRequest, TrainingStatus
from modyn.trainer_server.service import FULL_NAME, TrainerServicer
from modyn.trainer_server.trainings import Trainings
from modyn.workers import WorkerPool
from tests.support.preloaded import PRELOADED

RUN = RunId("digits-0001")


@dataclass
class Stored:
    """The content of model storage."""

    models: dict[tuple[str, int], StoredModelInfo] = field(default_factory=dict)
    reachable: bool = True

    def find(self, run_id: RunId, trigger_id: int) -> StoredModelInfo | None:
        if not self.reachable:
            raise UnavailableError("model storage cannot be reached")
        return self.models.get((run_id, trigger_id))

    def add(self, trigger_id: int, model_id: int) -> None:
        version = ModelVersion(model_id, RUN, trigger_id, None, "0" * 64, 1, 0.0, "SafetensorsFullModel", False)
        result = {"num_samples": 10, "num_batches": 2, "loss": 0.25}
        self.models[RUN, trigger_id] = StoredModelInfo(version, "MLP", {}, result)


@dataclass
class Room:
    """A trainer server whose trainings only pretend."""

    client: TrainerServerClient
    trainings: Trainings
    stored: Stored
    folder: Path
    pool: WorkerPool

    def request(self, trigger_id: int = 0, act: str = "succeed", **options: Any) -> TrainingRequest:
        training = {"act": act, "mark": str(self.folder / "marks"), **options}
        return TrainingRequest(RUN, trigger_id, {"model": {}, "training": training, "data": {}})

    def marks(self) -> list[int]:
        """The triggers whose training a worker began."""
        path = self.folder / "marks"
        return [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []

    def final(self, trigger_id: int = 0) -> TrainingStatus:
        *_, last = self.client.watch(RUN, trigger_id)
        return last


@contextmanager
def training_service(tmp_path: Path) -> Iterator[Room]:
    """A served `Room` below `tmp_path`. The folder of `trainer_tasks` must be importable."""
    pool, checks, stored = WorkerPool(1, preload=PRELOADED), WorkerPool(1, preload=PRELOADED), Stored()
    trainings = Trainings(SystemConfig(state_dir=tmp_path), pool, checks, stored.find)
    trainings.task = "trainer_tasks:pretend"
    endpoint = Endpoint(address=f"unix:{tmp_path}/t.sock")
    add = trainer_server_pb2_grpc.add_TrainerServerServicer_to_server
    server = start_server("trainer_server", endpoint, [Registration(add, TrainerServicer(trainings), FULL_NAME)], max_threads=8)
    with TrainerServerClient(endpoint) as client:
        yield Room(client, trainings, stored, tmp_path, pool)
    pool.close(0.5)
    checks.close(0.5)
    server.stop(0.1)
