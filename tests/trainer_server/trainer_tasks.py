"""Trainings that the tests run in worker processes, on samples in memory."""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path
from typing import Any

from modyn.config.base import Problem
from modyn.dataset.functions import compile_function
from modyn.errors import DataError
from modyn.model_storage.client import StoredModelInfo
from modyn.records import ModelVersion
from modyn.trainer_server.client import TrainingJob
from modyn.workers import Report
from tests.support.training import MemoryData, RecordedReport, TrainingRoom


class PassedOn(RecordedReport):
    """Lets a training in memory talk to the worker's real service."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self._report = report

    def send(self, message: object) -> None:
        self._report.send(message)

    @property
    def stopping(self) -> bool:
        return self._report.stopping


def train(request: tuple[dict[str, Any], MemoryData, str, float], report: Report) -> StoredModelInfo:
    """Train `pipeline` on `data` below `folder`. With a `delay`, each payload request takes so many seconds, and the 30th never ends:
    whoever wants to end this training while it runs has all the time that he needs."""
    pipeline, data, folder, delay = request
    if delay:
        asked = count(1)
        data = MemoryData(
            data.num_keys, data.partition_size, before_fetch=lambda keys: time.sleep(delay if next(asked) < 30 else 3600)
        )
    return TrainingRoom(Path(folder)).train(pipeline, data, PassedOn(report)).stored


def pretend(job: TrainingJob, report: Report) -> StoredModelInfo:
    """What a training looks like from outside, without one. `pipeline.training.act` says what happens."""
    request = job.request
    act = request.pipeline["training"]["act"]
    report.send({"samples_seen": 0, "samples_total": 10, "batches_seen": 0, "loss": None, "samples_per_s": 0.0})
    mark = request.pipeline["training"].get("mark")
    if mark:
        with Path(mark).open("a") as file:
            file.write(f"{request.trigger_id} {os.getpid()}\n")
    if act == "fail":
        raise DataError("record 3 is short")
    if act == "fail in no language":
        raise ValueError("cannot read '\udcff\0'")
    if act == "die":
        os.kill(os.getpid(), 9)
    while act == "wait" and not Path(request.pipeline["training"].get("until", "/nowhere")).exists():
        report.check()
        time.sleep(0.01)
    report.send({"samples_seen": 10, "samples_total": 10, "batches_seen": 2, "loss": 0.5, "samples_per_s": 20.0})
    result = {"num_samples": 10, "num_batches": 2, "loss": 0.25, "losses": [[1, 0.75]], "seconds": {"load": 0.1}}
    version = ModelVersion(100 + request.trigger_id, request.run_id, request.trigger_id, None, "0" * 64, 1, 0.0, "", False)
    return StoredModelInfo(version, "MLP", {}, result)


def find_what_is_no_text(pipeline: dict[str, Any], report: Report) -> list[Problem]:
    """A check of a pipeline that names a file."""
    return [Problem("training.\udcff", "cannot read '\udcff'")]


def allocate(num_bytes: int, report: Report) -> int:
    """Takes so much memory at once, by a function of the user."""
    source = f"def label_transformer_function(labels):\n    return np.ones({num_bytes}, np.uint8)"
    function = compile_function(source, "label_transformer_function")
    return len(function(lambda: "some labels", None))


def match_for_ever(_: object, report: Report) -> None:
    """A function of the user that does not let go of the interpreter."""
    source = "def bytes_parser_function(data):\n    import re\n    return re.match(r'(a+)+$', 'a' * 60 + 'b')"
    compile_function(source, "bytes_parser_function")(lambda: "sample 1", b"")
