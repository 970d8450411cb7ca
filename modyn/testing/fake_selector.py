"""The selector's client over memory: same methods, same errors, no service behind it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np

from modyn.config.base import Problem
from modyn.errors import AlreadyExistsError, ConflictError, InvalidArgumentError, NotFoundError
from modyn.records import KeysAndWeights, RunId, SampleBatch, TriggerSetInfo
from modyn.registry import Plugin


@dataclass
class _Run:
    dataset: str
    strategy: dict[str, Any]
    seed: int
    samples: SampleBatch = field(default_factory=SampleBatch.empty)
    boundaries: list[int] = field(default_factory=list)
    sets: list[KeysAndWeights] = field(default_factory=list)


class FakeSelectorClient:
    """Keeps everything it was told: `runs[run_id].samples` is the stream as informed."""

    def __init__(self) -> None:
        self.runs: dict[RunId, _Run] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        pass

    def validate(self, pipeline: Mapping[str, Any]) -> list[Problem]:
        return [] if "selection_strategy" in pipeline else [Problem("selection_strategy", "is required")]

    def plugins(self) -> list[Plugin]:
        return []

    def register_run(self, run_id: RunId, dataset: str, selection_strategy: Mapping[str, Any], seed: int) -> None:
        run = self.runs.setdefault(run_id, _Run(dataset, dict(selection_strategy), seed))
        if (run.dataset, run.strategy, run.seed) != (dataset, dict(selection_strategy), seed):
            raise AlreadyExistsError(f"run {run_id} is registered with other arguments; choose another run id")

    def inform(self, run_id: RunId, position: int, samples: SampleBatch) -> int:
        run = self._run(run_id)
        held = len(run.samples)
        if position > held:
            raise ConflictError(f"run {run_id} holds {held} samples, so position {position} leaves a gap")
        run.samples = SampleBatch.concatenate(
            [part for part in (run.samples, samples.slice(held - position, len(samples))) if len(part)]
        )
        return len(run.samples)

    def trigger(self, run_id: RunId, trigger_id: int, num_samples: int) -> TriggerSetInfo:
        run = self._run(run_id)
        if trigger_id < len(run.boundaries):
            if run.boundaries[trigger_id] != num_samples:
                raise ConflictError(f"trigger {trigger_id} of run {run_id} covers {run.boundaries[trigger_id]} samples")
            return self.trigger_set(run_id, trigger_id)
        if trigger_id > len(run.boundaries) or num_samples > len(run.samples):
            raise ConflictError(f"run {run_id} is not ready for trigger {trigger_id} over {num_samples} samples")
        tail, limit = run.strategy.get("tail_triggers"), run.strategy.get("limit", -1)
        first = trigger_id - 1 - tail if tail is not None else -1
        keys = run.samples.keys[run.boundaries[first] if first >= 0 else 0 : num_samples]
        keys = keys[-limit:] if limit > 0 else keys
        run.boundaries.append(num_samples)
        run.sets.append(KeysAndWeights(keys, np.ones(len(keys), np.float32)))
        return self.trigger_set(run_id, trigger_id)

    def trigger_set(self, run_id: RunId, trigger_id: int) -> TriggerSetInfo:
        keys = self._set(run_id, trigger_id).keys
        size = self.runs[run_id].strategy.get("maximum_keys_in_memory", 1000)
        return TriggerSetInfo(run_id, trigger_id, len(keys), size, hashlib.sha256(keys.astype("<i8").tobytes()).hexdigest())

    def keys(self, run_id: RunId, trigger_id: int, partition: int, worker: int = 0, num_workers: int = 1) -> KeysAndWeights:
        info, whole = self.trigger_set(run_id, trigger_id), self._set(run_id, trigger_id)
        if not (0 <= partition < info.num_partitions and 0 <= worker < num_workers):
            raise InvalidArgumentError(f"no partition {partition} of worker {worker} of {num_workers} in trigger {trigger_id}")
        start = partition * info.partition_size
        length = min(info.num_keys - start, info.partition_size)
        share = slice(start + length * worker // num_workers, start + length * (worker + 1) // num_workers)
        return KeysAndWeights(whole.keys[share], whole.weights[share])

    def delete_run(self, run_id: RunId) -> None:
        self.runs.pop(run_id, None)

    def _run(self, run_id: RunId) -> _Run:
        if run_id not in self.runs:
            raise NotFoundError(f"the selector knows no run {run_id}; register it first")
        return self.runs[run_id]

    def _set(self, run_id: RunId, trigger_id: int) -> KeysAndWeights:
        run = self._run(run_id)
        if not 0 <= trigger_id < len(run.sets):
            raise NotFoundError(f"run {run_id} has no trigger {trigger_id}")
        return run.sets[trigger_id]
