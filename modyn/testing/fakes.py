"""In-memory clients without services. These clients have the calls and errors of the real clients that supervisor and workers use.

Fakes of storage, selector and evaluator are in `fake_storage`, `fake_selector` and `fake_evaluator`; `services` combines all fakes.
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
from modyn.trainer_server.client import TrainingRequest, TrainingResult, TrainingStatus
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
    """A client of a service that checks sections of pipelines. `validate` returns `problems`."""

    problems: Sequence[Problem] = ()

    def validate(self, pipeline: Mapping[str, Any]) -> list[Problem]:
        """Return `problems`."""
        return list(self.problems)


class FakeModelStorage(FakeSectionClient):
    """A fake that replaces a ModelStorageClient. Methods take the same arguments."""

    def __init__(self) -> None:
        self._models: dict[int, tuple[StoredModelInfo, bytes]] = {}
        self._optimizers: dict[int, bytes] = {}
        self._ids = count(1)
        self._trail: list[Promotion] = []
        self._lock = (
            threading.Lock()
        )  # Protects the fields above. If two equal calls of `put` run at the same time, only one call makes the version.

    def put(
        self, header: ModelHeader, safetensors_path: Path, kept: KeptModels | None = None, optimizers: Path | None = None
    ) -> ModelVersion:
        """Store the bytes of the files, and return the version. If run and trigger already have a version, return this version instead.

        Args: kept: has no effect. optimizers: file that replaces the optimizers of the run's earlier triggers.
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
                full_bytes=len(content),
            )
            config, result = dict(header.model_config), dict(header.training_result)
            info = StoredModelInfo(version, header.model_class, config, result, model_definition=header.model_definition)
            self._models[version.model_id] = (info, content)
            if optimizers is not None:
                for earlier in self.list(header.run_id) if header.run_id else ():
                    if earlier.version.trigger_id < header.trigger_id:
                        self._optimizers.pop(earlier.version.model_id, None)
                self._optimizers[version.model_id] = optimizers.read_bytes()
            return version

    def get(self, model_id: int, into: Path, kept: KeptModels | None = None) -> StoredModel:
        """Write the stored bytes to `into`; `kept` is ignored. Raises NotFoundError."""
        info = self.describe(model_id)
        into.write_bytes(self._models[model_id][1])
        return StoredModel.of(info, into)

    def get_optimizers(self, model_id: int, into: Path, kept: KeptModels | None = None) -> None:
        """Write the state of the version's optimizers to `into`; `kept` is ignored. Raises NotFoundError."""
        self.describe(model_id)
        if model_id not in self._optimizers:
            raise NotFoundError(f"no state of optimizers is kept with model {model_id}")
        into.write_bytes(self._optimizers[model_id])

    def change_optimizers(self, model_id: int, state: bytes) -> None:
        """Replace the state of the version's optimizers, for tests of damaged states."""
        self._optimizers[model_id] = state

    def describe(self, model_id: int) -> StoredModelInfo:
        """Return a version without its weights. Raises NotFoundError."""
        if model_id not in self._models:
            raise NotFoundError(f"there is no model {model_id}; `modyn models ls` lists those that exist")
        return self._models[model_id][0]

    def find(self, run_id: RunId, trigger_id: int) -> StoredModelInfo | None:
        """Return the version of trigger `trigger_id` of a run; None if the trigger has no version."""
        return next((info for info in self.list(run_id) if run_id and info.version.trigger_id == trigger_id), None)

    def list(self, run_id: RunId | None = None) -> list[StoredModelInfo]:
        """Return the versions of a run, or all versions, in the order of their creation."""
        return [info for info, _ in self._models.values() if not run_id or info.version.run_id == run_id]

    def delete(self, model_id: int, *, even_promoted: bool = False) -> None:
        """Delete a version. Raises NotFoundError. ConflictError: the version is promoted, and `even_promoted` is false."""
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
        """Mark a version as the promoted version of its run. Raises NotFoundError, ConflictError."""
        run_id = self.describe(model_id).version.run_id
        if compares and (before := self.current(run_id).promoted_id) not in (compared_id, model_id):
            compared, found = ("none" if each is None else f"model {each}" for each in (compared_id, before))
            raise ConflictError(f"model {model_id} was compared with {compared}, and {found} is promoted by now")
        self._exchange(run_id, model_id, "promote", reason, verdicts)
        return self.describe(model_id)

    def refuse_promotion(self, model_id: int, reason: str, verdicts: Sequence[GateVerdict]) -> None:
        """Record that an evaluation refused a promotion. Raises NotFoundError."""
        run_id = self.describe(model_id).version.run_id
        before = self.current(run_id).promoted_id
        self._trail.append(Promotion(run_id, model_id, "refuse", before, reason, "test", time.time(), tuple(verdicts)))

    def rollback(self, run_id: RunId, reason: str = "") -> StoredModelInfo:
        """Promote the previously promoted version again. Raises NotFoundError, ConflictError."""
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
        """Return the newest version and the promoted version of a run."""
        own = [info.version for info in self.list(run_id)]
        promoted = (version.model_id for version in own if version.promoted)
        newest = max((version.model_id for version in own), default=None)
        in_trail = newest is not None and any(newest in (entry.model_id, entry.before_id) for entry in self.promotions(run_id))
        return CurrentVersions(newest, next(promoted, None), in_trail)

    def promotions(self, run_id: RunId) -> tuple[Promotion, ...]:
        """Return the promotions and rollbacks of a run, oldest first."""
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
"""Function that replaces a training. The function returns model id, SHA-256 of the weights, and training result, or raises an error of
`modyn.errors`.
"""


class FakeTrainerServer(FakeSectionClient):
    """A fake that replaces a TrainerServerClient. A training finishes when it is started.

    `train` makes the model of a request. By default, model ids count from 1, and no model is stored. `requests` has the request of each training
    that ran, and `scores` has the scores that the selection of the last checked pipeline needs. If `held` contains the run and trigger of a
    training, the training runs until `stop`, or until the iteration of `watch` continues.
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
        """Run the training immediately, unless it is held. A training that is running or finished keeps its status.

        Raises InvalidArgumentError and ConfigError, as the trainer server does.
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
        """Yield the status of the training of a trigger. If the training is held, then run the training, and also yield its final status.

        Raises: NotFoundError: the training was not started.
        """
        status = self._status(run_id, trigger_id)
        yield status
        if not status.state.is_final:
            self.held.discard((run_id, trigger_id))
            self._finish((run_id, trigger_id))
            yield self._status(run_id, trigger_id)

    def stop(self, run_id: str, trigger_id: int) -> None:
        """Mark the held training of a trigger as stopped. A training that has ended is not changed. Raises NotFoundError."""
        status = self._status(run_id, trigger_id)
        if self._waiting.pop((run_id, trigger_id), None) is not None:
            stopped = replace(status, state=JobState.STOPPED, error="stopped on request", error_reason="CANCELLED")
            self._statuses[run_id, trigger_id] = stopped

    def delete_run(self, run_id: str) -> None:
        """Remove the trainings of a run. Raises InvalidArgumentError."""
        check_run_id(run_id)
        for statuses in (self._statuses, self._waiting):
            for key in [key for key in statuses if key[0] == run_id]:
                del statuses[key]

    def _status(self, run_id: str, trigger_id: int) -> TrainingStatus:
        if (run_id, trigger_id) not in self._statuses:
            raise NotFoundError(f"there is no training of run {run_id}, trigger {trigger_id}; start it first")
        return self._statuses[run_id, trigger_id]

    def _finish(self, key: tuple[str, int]) -> None:
        """Run a training, unless the training has already run or was stopped."""
        request = self._waiting.pop(key, None)
        if request is None:
            return
        self.requests.append(request)
        status = replace(self._statuses[key], state=JobState.FINISHED)
        try:
            model_id, sha256, mapping = self.train(request)
            result = TrainingResult.from_mapping(mapping)
            if not result.nothing_trained:
                status = replace(
                    status,
                    model_id=model_id,
                    weights_sha256=sha256,
                    samples_seen=result.counts.num_samples,
                    samples_total=result.counts.num_samples,
                    batches_seen=result.counts.num_batches,
                    loss=result.losses.loss,
                )
            self._statuses[key] = replace(status, result=result)
        except ModynError as error:
            self._statuses[key] = replace(status, state=JobState.FAILED, error=error.message, error_reason=error.reason)
