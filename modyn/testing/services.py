"""All services that a supervisor needs, in memory, for tests of triggers, handlers and runs. A whole run takes milliseconds.

services = InMemoryServices(tmp_path)
services.storage.add_dataset("train")
services.storage.add_samples("train", timestamps=range(100))
runs = services.supervise(config)           # a real supervisor on a real PostgreSQL
run = runs.submit(pipeline_yaml(), "pipeline.yaml", RunOptions(RunMode.EXPERIMENT))
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import yaml
from safetensors.numpy import save_file

from modyn.config.system import SystemConfig
from modyn.db.engine import open_database
from modyn.evaluator.client import EvaluatorClient
from modyn.model_storage.client import ModelHeader, ModelStorageClient
from modyn.selector.client import SelectorClient
from modyn.selector.deletions import StorageDeletions
from modyn.supervisor.alerts.alerts import follow_runs
from modyn.supervisor.client import Run
from modyn.supervisor.journal.events import EventHub
from modyn.supervisor.journal.journal import Journal
from modyn.supervisor.queue.queue import RunQueue
from modyn.supervisor.services.run_clients import RunClients
from modyn.testing.fake_evaluator import FakeEvaluator
from modyn.testing.fake_selector import FakeSelectorClient
from modyn.testing.fake_storage import FakeStorage
from modyn.testing.fakes import FakeModelStorage, FakeTrainerServer
from modyn.testing.waiting import PATIENCE_S, eventually
from modyn.trainer_server.client import TrainerServerClient, TrainingRequest


class InMemoryServices:
    """Connected fakes. The model of each training is stored. The weights of the model depend only on trigger set, parent and seed."""

    def __init__(self, folder: Path) -> None:
        """Args: folder: folder for files of models."""
        self._folder = folder
        self.storage = FakeStorage()
        self.selector = FakeSelectorClient(StorageDeletions(self.storage.client()))
        self.model_storage = FakeModelStorage()
        self.trainer_server = FakeTrainerServer(self._train)
        self.evaluator = FakeEvaluator()

    def clients(self) -> RunClients:
        """Return one client of each fake, with the types of the real clients."""
        return RunClients(
            storage=self.storage.client(),
            selector=cast("SelectorClient", self.selector),
            model_storage=cast("ModelStorageClient", self.model_storage),
            trainer_server=cast("TrainerServerClient", self.trainer_server),
            evaluator=cast("EvaluatorClient", self.evaluator),
        )

    @contextmanager
    def supervise(self, config: SystemConfig, open_clients: Callable[[], RunClients] | None = None) -> Iterator[RunQueue]:
        """Make a supervisor that uses these services without gRPC. Args: open_clients: function that makes the clients of a run; None: `clients`."""
        database = open_database(config, "supervisor", "modyn.supervisor.migrations")
        hub = EventHub()
        journal = Journal(database, hub.wake_watchers, config.supervisor.events_kept)
        alerts = follow_runs(config.alerts, journal, hub)
        runs = RunQueue(journal, hub, open_clients or self.clients, config.supervisor)
        try:
            runs.recover()
            yield runs
        finally:
            runs.close()
            if alerts is not None:
                alerts.close()
            database.close()

    def _train(self, request: TrainingRequest) -> tuple[int, str, Mapping[str, Any]]:
        trigger_set = self.selector.trigger_set(request.run_id, request.trigger_id)
        parent = ""
        if request.parent_model_id is not None:
            parent = self.model_storage.describe(request.parent_model_id).version.weights_sha256
        made_of = hashlib.sha256(f"{trigger_set.keys_checksum}/{parent}/{request.seed}".encode())
        path = self._folder / f"{made_of.hexdigest()}.safetensors"
        save_file({"weights": np.frombuffer(made_of.digest(), np.float32)}, path)
        seconds = {"store": 0.001}
        result = {"num_samples": trigger_set.num_keys, "num_batches": 1, "num_epochs": 1, "loss": 0.5, "seconds": seconds}
        header = ModelHeader(
            request.run_id, request.trigger_id, "Fake", training_result=result, parent_id=request.parent_model_id
        )
        model = self.model_storage.put(header, path)
        return model.model_id, model.weights_sha256, result


def pipeline_yaml(**sections: object) -> str:
    """Return a small valid pipeline on the dataset `train`: a trigger every 10 samples, fine-tuning, no evaluation. Args: sections: sections that
    replace sections of the pipeline.
    """
    pipeline: dict[str, object] = {
        "pipeline": {"name": "Test"},
        "model": {"id": "Fake"},
        "training": {"use_previous_model": True, "seed": 7, "batch_size": 1},
        "data": {"dataset_id": "train"},
        "trigger": {"id": "DataAmountTrigger", "num_samples": 10},
        "selection_strategy": {"name": "NewDataStrategy", "maximum_keys_in_memory": 100, "tail_triggers": 0},
    }
    return yaml.safe_dump({name: value for name, value in {**pipeline, **sections}.items() if value is not None}, sort_keys=False)


def wait_until_terminal(runs: RunQueue, run_id: str, timeout_s: float = PATIENCE_S) -> Run:
    """Wait until a run has ended, and return the run. Raises AssertionError on a timeout."""
    eventually(
        lambda: runs.journal.run(run_id).is_terminal,
        lambda: f"run {run_id} is still {runs.journal.run(run_id).state}",
        timeout_s=timeout_s,
    )
    return runs.journal.run(run_id)
