"""Promotions that an evaluation decides: measures a version, judges it, and promotes it or notes why not."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from modyn.config.durations import parse_duration
from modyn.config.promotion import PromotionCondition, evaluated_entries, parse_condition
from modyn.errors import ConflictError, InvalidArgumentError, NotFoundError, UnavailableError
from modyn.evaluator.client import InIntervals, Measured, MeasureRequest, Score, check_ranges, metric_directions
from modyn.model_storage.client import CurrentVersions, GateVerdict, StoredModelInfo
from modyn.records import Interval, ModelVersion, RunId
from modyn.storage.client import DatasetInfo

_MEASURED_AT_MOST: Final = 3
"""So often versions are measured until both saw the same samples. Only what is new is passed through them again."""


class Promotions(Protocol):
    """What is needed of a client of model storage."""

    def current(self, run_id: RunId) -> CurrentVersions:
        """See `ModelStorageClient`."""
        ...

    def promote(
        self,
        model_id: int,
        reason: str = "",
        verdicts: Sequence[GateVerdict] = (),
        *,
        compares: bool = False,
        compared_id: int | None = None,
    ) -> StoredModelInfo:
        """See `ModelStorageClient`."""
        ...

    def refuse_promotion(self, model_id: int, reason: str, verdicts: Sequence[GateVerdict]) -> None:
        """See `ModelStorageClient`."""
        ...


class Measuring(Protocol):
    """What is needed of a client of the evaluator."""

    def measure(self, request: MeasureRequest) -> Measured:
        """See `EvaluatorClient`."""
        ...


class Datasets(Protocol):
    """What is needed of a client of storage."""

    def dataset(self, name: str) -> DatasetInfo:
        """See `StorageClient`."""
        ...


@dataclass(frozen=True, slots=True)
class GateDecision:
    """What became of a promotion with conditions."""

    model_id: int
    promoted: bool
    verdicts: tuple[GateVerdict, ...]

    def check(self) -> None:
        """Raise ConflictError unless the version was promoted."""
        if not self.promoted:
            raise ConflictError(str(self))

    def __str__(self) -> str:
        """For people."""
        met = "is promoted" if self.promoted else "is not promoted"
        return f"model {self.model_id} {met}: {'; '.join(map(str, self.verdicts))}"


def parse_conditions(texts: Iterable[str]) -> tuple[PromotionCondition, ...]:
    """Read conditions. Raises InvalidArgumentError."""
    return tuple(parse_condition(text) for text in texts)


def version_of(versions: Sequence[ModelVersion], run_id: str, model_id: int | None) -> int:
    """Return the version of a run that a user means. Args: versions: of the run. model_id: None: the newest.

    Raises: NotFoundError: there are none. InvalidArgumentError: it is none of them.
    """
    known = {version.model_id for version in versions}
    if not known:
        raise NotFoundError(f"run '{run_id}' has no models; `modyn models ls` lists those that exist")
    if model_id is not None and model_id not in known:
        raise InvalidArgumentError(f"model {model_id} is none of run '{run_id}'; `modyn models ls {run_id}` lists those")
    return max(known) if model_id is None else model_id


@dataclass(frozen=True, slots=True)
class _Value:
    """A metric of a version. None: undefined, `note` says why."""

    value: float | None
    note: str = ""
    num_listed: int = 0
    """Samples that there were when it was measured."""


class PromotionGate:
    """The conditions of one run. Versions are measured on datasets as they are at that moment, whole or over a window. Those that are compared are
    measured on the same samples of one registration: again, if samples came or were deleted meanwhile.

    Args: pipeline: of the run, whose `evaluation.datasets` says how samples are read; one that it lacks is read as its first one, or as its
    `data`. clock: seconds since 1970, at which a window ends where samples lie in the future.
    Raises: ConfigError: a metric or an entry is wrong, or no value of a metric meets or misses its number.
    """

    def __init__(
        self,
        run_id: RunId,
        pipeline: Mapping[str, Any],
        conditions: Sequence[PromotionCondition],
        models: Promotions,
        evaluator: Measuring,
        storage: Datasets,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.conditions, self._clock = tuple(conditions), clock
        self._run_id, self._models, self._evaluator, self._storage = run_id, models, evaluator, storage
        self._entries = evaluated_entries(pipeline, self.conditions)
        self._low_is_good = {name: metric_directions(entry) for name, entry in self._entries.items()}
        check_ranges(self.conditions, self._entries)
        self._device = str((pipeline.get("evaluation") or {}).get("device", "cpu"))
        self._cache = pipeline.get("cache") or {}

    def promote(self, model_id: int, reason: str) -> GateDecision:
        """Measure a version and promote it if all conditions hold. The audit trail has the verdicts either way.

        Raises: NotFoundError: there is no such version, dataset or sample, or a dataset was registered again while versions were measured on it:
        nothing was decided. ConflictError: another version was promoted meanwhile; try again.
        UnavailableError: a service is away, or samples came or were deleted whenever the versions were measured; nothing was decided. As
        `EvaluatorClient.measure`.
        """
        promoted_id = self._models.current(self._run_id).promoted_id
        compares = any(each.compares for each in self.conditions)
        compared_id = promoted_id if compares and promoted_id != model_id else None
        verdicts = self._judged(model_id, compared_id)
        passed = all(verdict.passed for verdict in verdicts)
        if passed:
            self._models.promote(model_id, reason, verdicts, compares=compares, compared_id=compared_id)
        else:
            self._models.refuse_promotion(model_id, reason, verdicts)
        return GateDecision(model_id, passed, verdicts)

    def _judged(self, model_id: int, compared_id: int | None) -> tuple[GateVerdict, ...]:
        # All values of a verdict are of one registration of a dataset, and of the times that its samples have at this moment.
        datasets = {name: self._storage.dataset(name) for name in dict.fromkeys(each.dataset for each in self.conditions)}
        intervals = {(name, window): self._interval(datasets[name], window) for name, window in map(_samples, self.conditions)}
        compared = {_samples(each) for each in self.conditions if each.compares} if compared_id is not None else set()
        deleted = {name: datasets[name].num_deleted for name, _ in compared}
        for _ in range(_MEASURED_AT_MOST):
            own = {of: self._measured(model_id, datasets[of[0]], interval) for of, interval in intervals.items()}
            other = {of: self._measured(compared_id or 0, datasets[of[0]], intervals[of]) for of in compared}
            before, deleted = deleted, {name: self._storage.dataset(name).num_deleted for name in deleted}
            # No deletion and as many samples: the same ones.
            if before == deleted and all(_listed(own[of]) == _listed(other[of]) for of in compared):
                break
        else:
            raise UnavailableError(
                f"samples of {', '.join(sorted(deleted))} came or were deleted while models {model_id} and {compared_id} were measured, each of "
                f"{_MEASURED_AT_MOST} times, so they cannot be compared: nothing was decided; promote again"
            )
        return tuple(
            judge(
                each,
                own[_samples(each)][each.metric],
                other[_samples(each)][each.metric] if each.compares and compared_id is not None else None,
                low_is_good=self._low_is_good[each.dataset][each.metric],
            )
            for each in self.conditions
        )

    def _interval(self, found: DatasetInfo, window: str) -> Interval:
        """The times of the samples that a dataset has, in the window: newer samples that come meanwhile do not count."""
        if found.max_timestamp is None or found.min_timestamp is None:
            raise NotFoundError(
                f"dataset '{found.name}' has no samples, so no version can be measured on it; add some, or name another one"
            )
        if not window:
            return Interval(end=found.max_timestamp + 1)
        now, newest = int(self._clock()), found.max_timestamp
        if found.min_timestamp <= now < newest:
            newest = now  # A sample that lies in the future moves no window. Where all do, their time is not that of the clock.
        return Interval(newest + 1 - parse_duration(window), newest + 1)

    def _measured(self, model_id: int, dataset: DatasetInfo, interval: Interval) -> Mapping[str, _Value]:
        request = MeasureRequest(
            self._run_id,
            model_id,
            self._entries[dataset.name],
            InIntervals([interval]),
            device=self._device,
            cache=self._cache,
            dataset_identity=dataset.identity,
        )
        return {score.metric: _value_of(score) for score in self._evaluator.measure(request).scores}


def _listed(values: Mapping[str, _Value]) -> set[int]:
    """How many samples there were for the metrics of one pass."""
    return {value.num_listed for value in values.values()}


def _samples(condition: PromotionCondition) -> tuple[str, str]:
    """What tells apart the samples that conditions measure on: dataset and window."""
    return condition.dataset, condition.window


def judge(condition: PromotionCondition, own: _Value, promoted: _Value | None, *, low_is_good: bool) -> GateVerdict:
    """Judge a version by one condition. Rule: what is undefined does not pass; where nothing is promoted, nothing is worse.

    Args: promoted: of the version that is promoted; None: not compared.
    """
    note = own.note if own.value is None else ""
    if condition.compares and promoted is None:
        note = note or "no other version is promoted"
    if promoted is not None and promoted.value is None:
        # It cannot be worse than what has no value.
        note = note or f"of the promoted version: {promoted.note}"
    other = None if promoted is None else promoted.value
    passed = own.value is not None and condition.holds(own.value, other, low_is_good=low_is_good)
    return GateVerdict(str(condition), own.value, other, passed, note)


def _value_of(score: Score) -> _Value:
    if score.value is None or not math.isfinite(score.value):
        return _Value(None, score.note or "its value is not finite", score.num_listed)
    return _Value(score.value, num_listed=score.num_listed)
