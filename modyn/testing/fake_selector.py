"""The selector's client over memory: same methods, same errors, same trigger sets as the service, and no service behind it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from modyn.config.base import Problem
from modyn.errors import AlreadyExistsError, ConflictError, NotFoundError
from modyn.records import Int64Array, KeysAndWeights, RunId, SampleBatch, TriggerSetInfo
from modyn.registry import Plugin
from modyn.selector.presampling import PRESAMPLING
from modyn.selector.selection import SELECTION, SelectionPolicy, build_selection, validate_selection
from modyn.selector.stream_checks import check_checksum, check_next, trigger_starts, unseen
from modyn.selector.trigger_set import partition_bounds
from modyn.selector.window import SelectionContext, SelectionWindow, choose_chunk_size
from modyn.testing.fake_client import FakeClient


@dataclass
class _Run:
    dataset: str
    strategy: dict[str, Any]
    seed: int
    policy: SelectionPolicy
    data: dict[str, Any] | None = None
    samples: SampleBatch = field(default_factory=SampleBatch.empty)
    boundaries: list[int] = field(default_factory=list)
    sets: list[KeysAndWeights] = field(default_factory=list)

    def read(self, start: int, end: int) -> SampleBatch:
        return self.samples.slice(start, end)

    def read_keys(self, start: int, end: int) -> Int64Array:
        return self.samples.keys[start:end]


class FakeSelectorClient(FakeClient):
    """Keeps everything in memory: `runs[run_id].samples` is the stream as informed, `.sets` are the trigger sets."""

    def __init__(self) -> None:
        self.runs: dict[RunId, _Run] = {}

    def validate(self, pipeline: Mapping[str, Any]) -> list[Problem]:
        return validate_selection(pipeline.get("selection_strategy", {}))

    def plugins(self) -> list[Plugin]:
        return [*SELECTION.plugins.values(), *PRESAMPLING.plugins.values()]

    def register_run(
        self,
        run_id: RunId,
        dataset: str,
        selection_strategy: Mapping[str, Any],
        seed: int,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        section = dict(selection_strategy)
        run = self.runs.setdefault(
            run_id, _Run(dataset, section, seed, build_selection(section), None if data is None else dict(data))
        )
        if (run.dataset, run.strategy, run.seed) != (dataset, section, seed):
            raise AlreadyExistsError(f"run '{run_id}' is registered with other arguments; choose another run id")

    def data_section(self, run_id: RunId) -> dict[str, Any] | None:
        return self._run(run_id).data

    def inform(self, run_id: RunId, position: int, samples: SampleBatch) -> int:
        run = self._run(run_id)
        new = unseen(run_id, len(run.samples), position, samples)
        if len(new):
            run.samples = SampleBatch.concatenate([run.samples, new]) if len(run.samples) else new
        return len(run.samples)

    def trigger(self, run_id: RunId, trigger_id: int, num_samples: int) -> TriggerSetInfo:
        run = self._run(run_id)
        if not 0 <= trigger_id < len(run.boundaries):
            check_next(run_id, len(run.samples), run.boundaries, trigger_id, num_samples)
            run.sets.append(_select(run, trigger_id, num_samples))
            run.boundaries.append(num_samples)
        if run.boundaries[trigger_id] != num_samples:
            raise ConflictError(f"trigger {trigger_id} of run '{run_id}' covers the first {run.boundaries[trigger_id]} samples")
        return self.trigger_set(run_id, trigger_id)

    def trigger_set(self, run_id: RunId, trigger_id: int) -> TriggerSetInfo:
        keys = self._set(run_id, trigger_id).keys
        size = self.runs[run_id].policy.shared.maximum_keys_in_memory
        return TriggerSetInfo(run_id, trigger_id, len(keys), size, hashlib.sha256(keys.astype("<i8").tobytes()).hexdigest())

    def keys(self, run_id: RunId, trigger_id: int, partition: int, keys_checksum: str = "") -> KeysAndWeights:
        info, found = self.trigger_set(run_id, trigger_id), self._set(run_id, trigger_id)
        check_checksum(info, keys_checksum)
        start, stop = partition_bounds(info.num_keys, info.partition_size, partition)
        return KeysAndWeights(found.keys[start:stop], found.weights[start:stop])

    def delete_run(self, run_id: RunId) -> None:
        self.runs.pop(run_id, None)

    def _run(self, run_id: RunId) -> _Run:
        if run_id not in self.runs:
            raise NotFoundError(f"the selector knows no run '{run_id}'; register it first")
        return self.runs[run_id]

    def _set(self, run_id: RunId, trigger_id: int) -> KeysAndWeights:
        run = self._run(run_id)
        if not 0 <= trigger_id < len(run.sets):
            raise NotFoundError(f"run '{run_id}' has no trigger {trigger_id}; trigger it first")
        return run.sets[trigger_id]


def _select(run: _Run, trigger_id: int, num_samples: int) -> KeysAndWeights:
    shared = run.policy.shared
    starts = trigger_starts(run.boundaries, trigger_id, shared.tail_triggers)
    window = SelectionWindow(run, starts[0], num_samples, choose_chunk_size(shared.maximum_keys_in_memory), starts)
    return KeysAndWeights.concatenate(list(run.policy.select(window, SelectionContext(run.seed, trigger_id)).parts))
