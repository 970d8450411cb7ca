"""Clients over memory: the calls and errors of the real ones, as far as supervisor and workers use them, and no service behind them.

Storage is in `fake_storage`, the selector in `fake_selector`, the evaluator in `fake_evaluator`; `services` puts all of them together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from modyn.config.base import Problem
from modyn.errors import ConflictError, InvalidArgumentError, ModynError, NotFoundError
from modyn.model_storage.client import CurrentVersions, GateVerdict, ModelHeader, Promotion, StoredModel, StoredModelInfo
from modyn.model_storage.promotions import rollback_target, says_more
from modyn.models.weights import weights_sha256
from modyn.records import JobState, ModelVersion, RunId
from modyn.registry import Plugin
from modyn.run_ids import check_run_id
from modyn.trainer_server.client import NOTHING_TRAINED, TrainingRequest, TrainingStatus
from modyn.trainer_server.trainings import check_request

if TYPE_CHECKING:
    from modyn.workers import KeptModels


class FakeClient:
    """A client without a connection."""

    closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Set `closed`."""
        self.closed = True

    def plugins(self) -> list[Plugin]:
        """Return no plug-in."""
        return []


class FakeSectionClient(FakeClient):
    """A client of a service that checks sections of pipelines. `problems` is what `validate` answers."""

    problems: Sequence[Problem] = ()

    def validate(self, pipeline: Mapping[str, Any]) -> list[Problem]:
        """Return `problems`."""
        return list(self.problems)


class FakeModelStorage(FakeSectionClient):
    """Use in place of a ModelStorageClient, whose methods take the same arguments."""

    def __init__(self) -> None:
        self._models: dict[int, tuple[StoredModelInfo, bytes]] = {}
        self._optimizers: dict[int, bytes] = {}
        self._ids = count(1)
        self._trail: list[Promotion] = []
        self._lock = threading.Lock()  # Protects the fields above, and lets one of two equal `put` make the version.

    def put(
        self, header: ModelHeader, safetensors_path: Path, kept: KeptModels | None = None, optimizers: Path | None = None
    ) -> ModelVersion:
        """Keep the bytes of the files and return the version; the one that exists for this (run, trigger), if any.

        Args: kept: left as it is. optimizers: takes the place of those of the run's earlier triggers.
        """
        digest, content = weights_sha256(safetensors_path), safetensors_path.read_bytes()
        with self._lock:
            existing = self.find(header.run_id, header.trigger_id)
            if existing is not None:
                return existing.version
            version = ModelVersion(
                model_id=next(self._ids),
                run_id=header.run_id,
                trigger_id=header.trigger_id,
                parent_id=header.parent_id,
                weights_sha256=digest,
                num_bytes=len(content),
                created_at=time.time(),
                strategy="SafetensorsFullModel",
                promoted=False,
            )
            info = StoredModelInfo(version, header.model_class, dict(header.model_config), dict(header.training_result))
            self._models[version.model_id] = (info, content)
            if optimizers is not None:
                for earlier in self.list(header.run_id) if header.run_id else ():
                    if earlier.version.trigger_id < header.trigger_id:
                        self._optimizers.pop(earlier.version.model_id, None)
                self._optimizers[version.model_id] = optimizers.read_bytes()
            return version

    def get(self, model_id: int, into: Path, kept: KeptModels | None = None) -> StoredModel:
        """Write the stored bytes to `into`; `kept` is left as it is. Raises NotFoundError."""
        info = self.describe(model_id)
        into.write_bytes(self._models[model_id][1])
        return StoredModel(info.version, info.model_class, info.model_config, info.training_result, into)

    def get_optimizers(self, model_id: int, into: Path, kept: KeptModels | None = None) -> None:
        """Write the state of the version's optimizers to `into`; `kept` is left as it is. Raises NotFoundError."""
        self.describe(model_id)
        if model_id not in self._optimizers:
            raise NotFoundError(f"no state of optimizers is kept with model {model_id}")
        into.write_bytes(self._optimizers[model_id])

    def change_optimizers(self, model_id: int, state: bytes) -> None:
        """For tests of damage: replace the state of the version's optimizers."""
        self._optimizers[model_id] = state

    def describe(self, model_id: int) -> StoredModelInfo:
        """A version without its weights. Raises NotFoundError."""
        if model_id not in self._models:
            raise NotFoundError(f"there is no model {model_id}; `modyn models ls` lists those that exist")
        return self._models[model_id][0]

    def find(self, run_id: RunId, trigger_id: int) -> StoredModelInfo | None:
        """Return the version of trigger `trigger_id` of a run; None if there is none."""
        return next((info for info in self.list(run_id) if run_id and info.version.trigger_id == trigger_id), None)

    def list(self, run_id: RunId | None = None) -> list[StoredModelInfo]:
        """The versions of a run, or all, in the order in which they were put."""
        return [info for info, _ in self._models.values() if not run_id or info.version.run_id == run_id]

    def delete(self, model_id: int, *, even_promoted: bool = False) -> None:
        """Delete a version. Raises NotFoundError, and ConflictError while it is promoted, unless `even_promoted`."""
        if self.describe(model_id).version.promoted and not even_promoted:
            raise ConflictError(f"model {model_id} is promoted, so it may be in use; promote another version of the run first")
        del self._models[model_id]
        self._optimizers.pop(model_id, None)

    def promote(
        self,
        model_id: int,
        reason: str = "",
        verdicts: Sequence[GateVerdict] = (),
        *,
        compares: bool = False,
        compared_id: int | None = None,
    ) -> StoredModelInfo:
        """Mark a version as the one to use, and no other of the same run. Raises NotFoundError, ConflictError."""
        run_id = self.describe(model_id).version.run_id
        if compares and (before := self.current(run_id).promoted_id) not in (compared_id, model_id):
            compared, found = ("none" if each is None else f"model {each}" for each in (compared_id, before))
            raise ConflictError(f"model {model_id} was compared with {compared}, and {found} is promoted by now")
        self._exchange(run_id, model_id, "promote", reason, verdicts)
        return self.describe(model_id)

    def refuse_promotion(self, model_id: int, reason: str, verdicts: Sequence[GateVerdict]) -> None:
        """Note in the trail that an evaluation was against a promotion. Raises NotFoundError."""
        run_id = self.describe(model_id).version.run_id
        before = self.current(run_id).promoted_id
        self._trail.append(Promotion(run_id, model_id, "refuse", before, reason, "test", time.time(), tuple(verdicts)))

    def rollback(self, run_id: RunId, reason: str = "") -> StoredModelInfo:
        """Mark the version again that was promoted before. Raises NotFoundError, ConflictError."""
        if not run_id:
            raise InvalidArgumentError("name a run: imported models have no order to go back in; promote one of them")
        if not self.list(run_id):
            raise NotFoundError(f"run '{run_id}' has no models; `modyn models ls` lists those that exist")
        if not any(info.version.promoted for info in self.list(run_id)):
            raise ConflictError(f"no model of run '{run_id}' is promoted; promote one with `modyn models promote {run_id}`")
        target = rollback_target(self.promotions(run_id), self._models.__contains__)
        if target is None:
            raise ConflictError(f"no model of run '{run_id}' that still exists was promoted before")
        self._exchange(run_id, target, "rollback", reason)
        return self.describe(target)

    def current(self, run_id: RunId) -> CurrentVersions:
        """The newest version of a run and the promoted one."""
        own = [info.version for info in self.list(run_id)]
        promoted = (version.model_id for version in own if version.promoted)
        newest = max((version.model_id for version in own), default=None)
        in_trail = newest is not None and any(newest in (entry.model_id, entry.before_id) for entry in self.promotions(run_id))
        return CurrentVersions(newest, next(promoted, None), in_trail)

    def promotions(self, run_id: RunId) -> tuple[Promotion, ...]:
        """The promotions and rollbacks of a run, the oldest first."""
        return tuple(entry for entry in self._trail if entry.run_id == run_id)

    def _exchange(self, run_id: RunId, model_id: int, action: str, reason: str, verdicts: Sequence[GateVerdict] = ()) -> None:
        with self._lock:
            own = [
                info.version
                for info, _ in self._models.values()
                if info.version.run_id == run_id and (run_id or info.version.model_id == model_id)
            ]
            before = next((version.model_id for version in own if version.promoted), None)
            promotion = Promotion(run_id, model_id, action, before, reason, "test", time.time(), tuple(verdicts))
            if before == model_id:
                if says_more(self.promotions(run_id), model_id, promotion.verdicts):
                    self._trail.append(promotion)
                return
            for version in own:
                info, content = self._models[version.model_id]
                changed = replace(version, promoted=version.model_id == model_id)
                self._models[version.model_id] = (replace(info, version=changed), content)
            self._trail.append(promotion)


Train = Callable[[TrainingRequest], tuple[int, str, Mapping[str, Any]]]
"""In place of the training: returns (model id, SHA-256 of the weights, training result) or raises one of our errors."""


class FakeTrainerServer(FakeSectionClient):
    """Use in place of a TrainerServerClient. A training finishes as soon as it is started.

    `train` makes the model of a request; by default ids count up from 1 and nothing is stored. `requests` holds one request for each
    training that really ran, `scores` what the selection of the pipeline that was checked last asks for. A training whose (run, trigger) is in
    `held` stays running until `stop`, or until `watch` is asked again.
    """

    def __init__(self, train: Train | None = None) -> None:
        ids = count(1)
        self.train: Train = train or (lambda request: (next(ids), "", {"num_samples": 0, "num_batches": 0, "num_epochs": 0}))
        self.requests: list[TrainingRequest] = []
        self.scores: tuple[str, ...] = ()
        self.held: set[tuple[str, int]] = set()
        self._statuses: dict[tuple[str, int], TrainingStatus] = {}
        self._waiting: dict[tuple[str, int], TrainingRequest] = {}

    def validate(self, pipeline: Mapping[str, Any], scores: Sequence[str] = ()) -> list[Problem]:
        """Return `problems`."""
        self.scores = tuple(scores)
        return super().validate(pipeline)

    def start(self, request: TrainingRequest) -> TrainingStatus:
        """Carry the training out at once unless it is held; again for one that runs or has finished returns its status.

        Raises InvalidArgumentError and ConfigError as the trainer server does.
        """
        check_request(request)
        key = (str(request.run_id), request.trigger_id)
        known = self._statuses.get(key)
        if known is not None and known.state in (JobState.RUNNING, JobState.FINISHED):
            return known
        self._statuses[key] = TrainingStatus(request.run_id, request.trigger_id, JobState.RUNNING)
        self._waiting[key] = request
        if key not in self.held:
            self._finish(key)
        return self._statuses[key]

    def watch(self, run_id: str, trigger_id: int) -> Iterator[TrainingStatus]:
        """Yield the status of the training of a trigger; of a held one then also the final one, for which it is carried out.

        Raises: NotFoundError: it was not started.
        """
        status = self._status(run_id, trigger_id)
        yield status
        if not status.state.is_final:
            self.held.discard((run_id, trigger_id))
            self._finish((run_id, trigger_id))
            yield self._status(run_id, trigger_id)

    def stop(self, run_id: str, trigger_id: int) -> None:
        """Mark the held training of a trigger as stopped; without effect on one that has ended. Raises NotFoundError."""
        status = self._status(run_id, trigger_id)
        if self._waiting.pop((run_id, trigger_id), None) is not None:
            stopped = replace(status, state=JobState.STOPPED, error="stopped on request", error_reason="CANCELLED")
            self._statuses[run_id, trigger_id] = stopped

    def delete_run(self, run_id: str) -> None:
        """Forget the trainings of a run. Raises InvalidArgumentError."""
        check_run_id(run_id)
        for statuses in (self._statuses, self._waiting):
            for key in [key for key in statuses if key[0] == run_id]:
                del statuses[key]

    def _status(self, run_id: str, trigger_id: int) -> TrainingStatus:
        if (run_id, trigger_id) not in self._statuses:
            raise NotFoundError(f"there is no training of run {run_id}, trigger {trigger_id}; start it first")
        return self._statuses[run_id, trigger_id]

    def _finish(self, key: tuple[str, int]) -> None:
        """Carry a training out, unless that was done or it was stopped meanwhile."""
        request = self._waiting.pop(key, None)
        if request is None:
            return
        self.requests.append(request)
        status = replace(self._statuses[key], state=JobState.FINISHED)
        try:
            model_id, sha256, result = self.train(request)
            # A result that says why nothing was trained comes without a model.
            if NOTHING_TRAINED not in result:
                status = replace(
                    status,
                    model_id=model_id,
                    weights_sha256=sha256,
                    samples_seen=result.get("num_samples", 0),
                    samples_total=result.get("num_samples"),
                    batches_seen=result.get("num_batches", 0),
                    loss=result.get("loss"),
                )
            self._statuses[key] = replace(status, result=result)
        except ModynError as error:
            self._statuses[key] = replace(status, state=JobState.FAILED, error=error.message, error_reason=error.reason)
