"""Clients over memory: the calls and errors of the real ones, as far as supervisor and workers use them, and no service behind them.

Storage is in `fake_storage`, the evaluator in `fake_evaluator`; `services` puts all of them together.
"""

from __future__ import annotations

import hashlib
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from modyn.config.base import Problem
from modyn.errors import AlreadyExistsError, ConflictError, ModynError, NotFoundError
from modyn.model_storage.client import ModelHeader, StoredModel, StoredModelInfo
from modyn.models.weights import weights_sha256
from modyn.records import JobState, KeysAndWeights, ModelVersion, RunId, SampleBatch, TriggerSetInfo
from modyn.registry import Plugin
from modyn.rpc.retry import CancellationToken
from modyn.run_ids import check_run_id
from modyn.selector.deletions import DeletedKeys
from modyn.selector.sample_log import check_range, refuse_other_labels, refuse_others, unseen
from modyn.selector.selection import SelectionPolicy, build_selection, validate_selection_section
from modyn.selector.trigger_set import check_checksum, check_next, partition_bounds
from modyn.selector.window import NO_KEYS, SelectionContext, StateFiles, trigger_before_window, window_of_trigger
from modyn.testing.memory_reader import MemoryReader
from modyn.trainer_server.client import NOTHING_TRAINED, TrainingRequest, TrainingStatus
from modyn.trainer_server.trainings import check_request

if TYPE_CHECKING:
    from modyn.selector.window.state_files import References
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


@dataclass
class _RegisteredRun:
    dataset: str
    strategy: dict[str, Any]
    seed: int
    policy: SelectionPolicy
    data: dict[str, Any] | None = None
    dataset_identity: str = ""
    samples: SampleBatch = field(default_factory=SampleBatch.empty)
    boundaries: list[int] = field(default_factory=list)
    sets: list[KeysAndWeights] = field(default_factory=list)
    state_files: References = field(default_factory=dict)


class FakeSelectorClient(FakeClient):
    """Makes the same trigger sets as the service. `runs[run_id].samples` is the stream as informed, `.sets` are the trigger sets.

    Args: deleted_keys: which keys of a dataset are deleted; by default none. Methods take the arguments of those of `SelectorClient`.
    """

    def __init__(self, deleted_keys: DeletedKeys = lambda dataset, identity: NO_KEYS) -> None:
        self._deleted_keys = deleted_keys
        self.runs: dict[RunId, _RegisteredRun] = {}
        self._folder = Path(mkdtemp(prefix="modyn-fake-selector-"))
        """Of the files that policies keep."""
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def validate(self, pipeline: Mapping[str, Any]) -> list[Problem]:
        """The problems that the service would find."""
        return validate_selection_section(pipeline)

    def register_run(
        self,
        run_id: RunId,
        dataset: str,
        selection_strategy: Mapping[str, Any],
        seed: int,
        data: Mapping[str, Any] | None = None,
        dataset_identity: str = "",
    ) -> None:
        """Register a run as `SelectorClient.register_run`, with a policy that is built from `selection_strategy` here.

        Raises: AlreadyExistsError: it is registered with other arguments. ConfigError: the section is wrong.
        """
        check_run_id(run_id)
        section = dict(selection_strategy)
        new = _RegisteredRun(
            dataset, section, seed, build_selection(section), None if data is None else dict(data), dataset_identity
        )
        run = self.runs.setdefault(run_id, new)
        if (run.dataset, run.strategy, run.seed, run.dataset_identity) != (dataset, section, seed, dataset_identity):
            raise AlreadyExistsError(
                f"run '{run_id}' is registered with another dataset, or another registration of it, strategy or seed; choose another run id"
            )

    def data_section(self, run_id: RunId) -> dict[str, Any] | None:
        """Return `data` as it was registered. Raises NotFoundError."""
        return self._run(run_id).data

    def dataset(self, run_id: RunId) -> tuple[str, str]:
        """Return the dataset and its identity as they were registered. Raises NotFoundError."""
        run = self._run(run_id)
        return run.dataset, run.dataset_identity

    def inform(self, run_id: RunId, position: int, samples: SampleBatch) -> int:
        """Append what is new of `samples`, which begin at `position` of the run's stream; return the number held.

        Raises: ConflictError: there is a gap, or other samples are held at these positions.
        """
        run = self._run(run_id)
        held = len(run.samples)
        new = unseen(run_id, held, position, samples)
        known = samples.keys[: len(samples) - len(new)]
        refuse_others(run_id, position, run.samples.keys[position : position + len(known)], known)
        if len(new):
            floats = run.samples.labels.dtype.kind == "f" if held else None
            refuse_other_labels(run_id, held, floats, new.labels.dtype.kind == "f")
            run.samples = SampleBatch.concatenate([run.samples, new]) if held else new
        return len(run.samples)

    def samples(self, run_id: RunId, position: int, limit: int) -> SampleBatch:
        """Return at most `limit` samples from `position` on, as they were informed. Raises ConflictError if fewer are held."""
        run = self._run(run_id)
        check_range(run_id, len(run.samples), position, limit)
        return run.samples.slice(position, min(position + limit, len(run.samples)))

    def trigger(self, run_id: RunId, trigger_id: int, num_samples: int, token: CancellationToken | None = None) -> TriggerSetInfo:
        """Select over the first `num_samples` samples as the service does, or return the existing set.

        Args: token: checked once, before the selection.
        Raises: ConflictError: as `SelectorClient.trigger`.
        """
        run = self._run(run_id)
        if token is not None:
            token.check()
        if not 0 <= trigger_id < len(run.boundaries):
            covered = run.boundaries[-1] if run.boundaries else 0
            check_next(run_id, len(run.samples), len(run.boundaries), covered, trigger_id, num_samples)
            config = run.policy.config
            reader, deleted = MemoryReader(run.samples), self._deleted_keys(run.dataset, run.dataset_identity)
            before = trigger_before_window(trigger_id, config.tail_triggers)
            start = 0 if before is None else run.boundaries[before]
            window = window_of_trigger(reader, start, num_samples, config.maximum_keys_in_memory, deleted)
            files = StateFiles(self._folder / run_id, trigger_id, run.state_files)
            context = SelectionContext(run.seed, trigger_id, files, lambda: np.array(run.boundaries, np.int64))
            run.sets.append(KeysAndWeights.concatenate(list(run.policy.select(window, context).chunks)))
            run.state_files = files.references()
            run.boundaries.append(num_samples)
        if run.boundaries[trigger_id] != num_samples:
            raise ConflictError(
                f"trigger {trigger_id} of run '{run_id}' covers the first {run.boundaries[trigger_id]} samples; it does not change"
            )
        return self.trigger_set(run_id, trigger_id)

    def trigger_set(self, run_id: RunId, trigger_id: int) -> TriggerSetInfo:
        """Describe the set of trigger `trigger_id` of a run. Raises NotFoundError."""
        run = self._run(run_id)
        if not 0 <= trigger_id < len(run.sets):
            raise NotFoundError(f"run '{run_id}' has no trigger {trigger_id}; trigger it first")
        keys, size = run.sets[trigger_id].keys, run.policy.config.maximum_keys_in_memory
        checksum = hashlib.sha256(keys.astype("<i8").tobytes()).hexdigest()
        return TriggerSetInfo(run_id, trigger_id, len(keys), size, checksum, run.dataset_identity)

    def keys(self, run_id: RunId, trigger_id: int, partition: int, keys_checksum: str = "") -> KeysAndWeights:
        """Return a partition, counted from 0, in one piece. Raises ConflictError if the set has another checksum than `keys_checksum`."""
        info = self.trigger_set(run_id, trigger_id)
        check_checksum(info, keys_checksum)
        start, stop = partition_bounds(info.num_keys, info.partition_size, partition)
        found = self.runs[run_id].sets[trigger_id]
        return KeysAndWeights(found.keys[start:stop], found.weights[start:stop])

    def delete_run(self, run_id: RunId) -> None:
        """Forget a run; a no-op for an unknown one."""
        self.runs.pop(run_id, None)

    def _run(self, run_id: RunId) -> _RegisteredRun:
        if run_id not in self.runs:
            raise NotFoundError(f"the selector knows no run '{run_id}'; register it first")
        return self.runs[run_id]


class FakeModelStorage(FakeSectionClient):
    """Use in place of a ModelStorageClient, whose methods take the same arguments."""

    def __init__(self) -> None:
        self._models: dict[int, tuple[StoredModelInfo, bytes]] = {}
        self._optimizers: dict[int, bytes] = {}
        self._ids = count(1)
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

    def get_optimizers(self, model_id: int, into: Path) -> None:
        """Write the state of the version's optimizers to `into`. Raises NotFoundError."""
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

    def promote(self, model_id: int) -> StoredModelInfo:
        """Mark a version as the one to use, and no other of the same run. Raises NotFoundError."""
        run_id = self.describe(model_id).version.run_id
        with self._lock:
            for other, (info, content) in self._models.items():
                if other == model_id or (run_id and info.version.run_id == run_id):
                    version = replace(info.version, promoted=other == model_id)
                    self._models[other] = (replace(info, version=version), content)
        return self.describe(model_id)


Train = Callable[[TrainingRequest], tuple[int, str, Mapping[str, Any]]]
"""In place of the training: returns (model id, SHA-256 of the weights, training result) or raises one of our errors."""


class FakeTrainerServer(FakeSectionClient):
    """Use in place of a TrainerServerClient. A training finishes as soon as it is started.

    `train` makes the model of a request; by default ids count up from 1 and nothing is stored. `requests` holds one request for each
    training that really ran. A training whose (run, trigger) is in `held` stays running until `stop`, or until `watch` is asked again.
    """

    def __init__(self, train: Train | None = None) -> None:
        ids = count(1)
        self.train: Train = train or (lambda request: (next(ids), "", {"num_samples": 0, "num_batches": 0, "num_epochs": 0}))
        self.requests: list[TrainingRequest] = []
        self.held: set[tuple[str, int]] = set()
        self._statuses: dict[tuple[str, int], TrainingStatus] = {}
        self._waiting: dict[tuple[str, int], TrainingRequest] = {}

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
