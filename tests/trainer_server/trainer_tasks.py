"""Trainings that the tests run in worker processes, on samples in memory."""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path
from typing import Any

from modyn.config.base import Problem
from modyn.dataset.code.functions import compile_function
from modyn.errors import DataError
from modyn.model_storage.client import StoredModelInfo
from modyn.records import ModelVersion
from modyn.rpc.logs import configure_logs
from modyn.trainer_server.client import TrainingJob, TrainingResult
from modyn.trainer_server.request.records import BatchProgress, StageProgress
from modyn.workers import JobConnection
from tests.support.training import MemoryData, RecordedReport, TrainingRoom


class PassedOn(RecordedReport):
    """Forwards messages and stop requests between a training in memory and the worker's real service."""

    def __init__(self, connection: JobConnection) -> None:
        super().__init__()
        self.device, self.models = connection.device, connection.models
        self._worker = connection

    def send(self, message: object) -> None:
        self._worker.send(message)

    @property
    def stopping(self) -> bool:
        return self._worker.stopping


def train(request: tuple[dict[str, Any], MemoryData, str, float], connection: JobConnection) -> StoredModelInfo:
    """Train `pipeline` on `data` below `folder`. With a `delay`, each payload request takes that number of seconds, and the 30th takes an hour,
    so that a test can end the training while it runs."""
    pipeline, data, folder, delay = request
    configure_logs("trainer_worker")
    if delay:
        asked = count(1)
        data = MemoryData(
            data.num_keys, data.partition_size, before_fetch=lambda keys: time.sleep(delay if next(asked) < 30 else 3600)
        )
    return TrainingRoom(Path(folder)).train(pipeline, data, PassedOn(connection)).stored


def pretend(job: TrainingJob, connection: JobConnection) -> StoredModelInfo | TrainingResult:
    """Send the messages and the result of a training without training. `pipeline.training.act` selects how it ends."""
    request = job.request
    act = request.pipeline["training"]["act"]
    stage = request.pipeline["training"].get("stage", "")
    connection.send(StageProgress(stage))
    connection.send(BatchProgress(samples_total=10))
    mark = request.pipeline["training"].get("mark")
    if mark:
        with Path(mark).open("a") as file:
            file.write(f"{request.trigger_id} {os.getpid()}\n")
    if act == "fail":
        raise DataError("record 3 is short")
    if act == "fail in no language":
        raise ValueError("cannot read '\udcff\0'")
    if act == "train nothing":
        return TrainingResult(nothing_trained="no whole batch")
    if act == "die":
        os.kill(os.getpid(), 9)
    while act == "wait" and not Path(request.pipeline["training"].get("until", "/nowhere")).exists():
        connection.check()
        time.sleep(0.01)
    connection.send(StageProgress())
    connection.send(BatchProgress(10, 10, 2, 0.5, 20.0))
    result = {"num_samples": 10, "num_batches": 2, "loss": 0.25, "losses": [[1, 0.75]], "seconds": {"load": 0.1}}
    version = ModelVersion(100 + request.trigger_id, request.run_id, request.trigger_id, None, "0" * 64, 1, 0.0, "", False)
    return StoredModelInfo(version, "MLP", {}, result)


def find_what_is_no_text(pipeline: dict[str, Any], connection: JobConnection) -> list[Problem]:
    """Return a problem whose path and message are not valid UTF-8, as the name of a file may be."""
    return [Problem("training.\udcff", "cannot read '\udcff'")]


def allocate(num_bytes: int, connection: JobConnection) -> int:
    """Allocate `num_bytes` bytes at once in a user function."""
    source = f"def label_transformer_function(labels):\n    return np.ones({num_bytes}, np.uint8)"
    function = compile_function(source, "label_transformer_function")
    return len(function(lambda: "some labels", None))


def match_for_ever(_: object, connection: JobConnection) -> None:
    """Run a user function that never releases the GIL."""
    source = "def bytes_parser_function(data):\n    import re\n    return re.match(r'(a+)+$', 'a' * 60 + 'b')"
    compile_function(source, "bytes_parser_function")(lambda: "sample 1", b"")
