"""A trainer server in memory: finishes every training at once with a model that it makes itself, or as a test determines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from modyn.config.base import Problem
from modyn.errors import ModynError, NotFoundError
from modyn.records import RunId
from modyn.testing.fake_client import FakeClient
from modyn.trainer_server.client import TrainingRequest, TrainingState, TrainingStatus

Train = Callable[[TrainingRequest], tuple[int, str, Mapping[str, Any]]]
"""In place of the training: returns (model id, SHA-256 of the weights, training result) or raises one of our errors."""


class FakeTrainerServer(FakeClient):
    """Has the methods of TrainerServerClient.

    `train` makes the model of a request; by default ids count up from 1 and nothing is stored. Requests are kept in `requests`, one for
    each training that really ran. `problems` is what `validate` answers. A training whose (run, trigger) is in `held` stays running
    until `release` or `stop`.
    """

    def __init__(self, train: Train | None = None, problems: list[Problem] | None = None) -> None:
        ids = count(1)
        self.train: Train = train or (lambda request: (next(ids), "", {"num_samples": 0, "num_batches": 0, "num_epochs": 0}))
        self.problems = problems or []
        self.requests: list[TrainingRequest] = []
        self.held: set[tuple[str, int]] = set()
        self._statuses: dict[tuple[str, int], TrainingStatus] = {}
        self._waiting: dict[tuple[str, int], TrainingRequest] = {}

    def validate(self, pipeline: Mapping[str, Any]) -> list[Problem]:
        return list(self.problems)

    def start(self, request: TrainingRequest) -> TrainingStatus:
        key = (str(request.run_id), request.trigger_id)
        known = self._statuses.get(key)
        if known is not None and known.state in (TrainingState.RUNNING, TrainingState.FINISHED):
            return known
        self._statuses[key] = TrainingStatus(RunId(request.run_id), request.trigger_id, TrainingState.RUNNING)
        if key in self.held:
            self._waiting[key] = request
        else:
            self._finish(request)
        return self._statuses[key]

    def release(self, run_id: str, trigger_id: int) -> None:
        """Let a held training finish."""
        self.held.discard((run_id, trigger_id))
        self._finish(self._waiting.pop((run_id, trigger_id)))

    def watch(self, run_id: str, trigger_id: int) -> Iterator[TrainingStatus]:
        """The status now; a held training is released when its next one is asked for."""
        status = self._status(run_id, trigger_id)
        yield status
        if not status.state.is_final:
            if (run_id, trigger_id) in self._waiting:
                self.release(run_id, trigger_id)
            yield self._status(run_id, trigger_id)

    def stop(self, run_id: str, trigger_id: int) -> None:
        status = self._status(run_id, trigger_id)
        self._waiting.pop((run_id, trigger_id), None)
        if not status.state.is_final:
            stopped = replace(status, state=TrainingState.STOPPED, error="stopped on request", error_reason="CANCELLED")
            self._statuses[run_id, trigger_id] = stopped

    def _status(self, run_id: str, trigger_id: int) -> TrainingStatus:
        if (run_id, trigger_id) not in self._statuses:
            raise NotFoundError(f"there is no training of run {run_id}, trigger {trigger_id}; start it first")
        return self._statuses[run_id, trigger_id]

    def _finish(self, request: TrainingRequest) -> None:
        self.requests.append(request)
        status = TrainingStatus(RunId(request.run_id), request.trigger_id, TrainingState.FINISHED)
        try:
            model_id, sha256, result = self.train(request)
            status = replace(status, model_id=model_id, weights_sha256=sha256, result=result)
        except ModynError as error:
            status = replace(status, state=TrainingState.FAILED, error=error.message, error_reason=error.reason)
        self._statuses[str(request.run_id), request.trigger_id] = status
