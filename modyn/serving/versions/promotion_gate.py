"""Promotion that depends on an evaluation. The gate measures a version, judges the version, and then promotes the version or records the reasons
against it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from modyn.config.durations import parse_duration
from modyn.config.promotion import PromotionCondition, evaluated_entries, parse_condition
from modyn.errors import ConflictError, InvalidArgumentError, NotFoundError, UnavailableError
from modyn.evaluator.client import EvaluatorClient, InIntervals, MeasureRequest, Score, check_ranges, metric_directions
from modyn.model_storage.client import GateVerdict, ModelStorageClient
from modyn.records import Interval, ModelVersion, RunId
from modyn.storage.client import DatasetInfo, StorageClient

_MEASURED_AT_MOST: Final = 3
"""Largest number of attempts to measure both versions on the same samples. Each attempt passes only new samples through the models."""


@dataclass(frozen=True, slots=True)
class GateDecision:
    """Result of a promotion with conditions."""

    model_id: int
    promoted: bool
    verdicts: tuple[GateVerdict, ...]

    def check(self) -> None:
        """Raise ConflictError unless the version was promoted."""
        if not self.promoted:
            raise ConflictError(str(self))

    def __str__(self) -> str:
        """Return a sentence with all verdicts."""
        met = "is promoted" if self.promoted else "is not promoted"
        return f"model {self.model_id} {met}: {'; '.join(map(str, self.verdicts))}"


def parse_conditions(texts: Iterable[str]) -> tuple[PromotionCondition, ...]:
    """Parse conditions. Raises InvalidArgumentError."""
    return tuple(parse_condition(text) for text in texts)


def version_of(versions: Sequence[ModelVersion], run_id: str, model_id: int | None) -> int:
    """Return the id of a run's version. Args: versions: all versions of the run. model_id: id of the wanted version; None: the newest version.

    Raises: NotFoundError: the run has no versions. InvalidArgumentError: the version does not belong to the run.
    """
    known = {version.model_id for version in versions}
    if not known:
        raise NotFoundError(f"run '{run_id}' has no models; `modyn models ls` lists those that exist")
    if model_id is not None and model_id not in known:
        raise InvalidArgumentError(f"model {model_id} is not of run '{run_id}'; `modyn models ls {run_id}` lists those")
    return max(known) if model_id is None else model_id


@dataclass(frozen=True, slots=True)
class _Value:
    """A metric of a version. value: None if the metric is undefined; `note` then has the reason. num_listed: number of samples of the dataset at
    the time of the measurement.
    """

    value: float | None
    note: str = ""
    num_listed: int = 0


class PromotionGate:
    """The conditions of one run. Versions are measured on the current samples of datasets, on all samples or on a window. Versions that are
    compared are measured on the same samples of the same registration. If samples arrived or were deleted meanwhile, the measurement is repeated.

    Args: pipeline: pipeline of the run. The field `evaluation.datasets` defines how samples are read; a dataset without an entry is read like the
    first entry, or like section `data`. clock: returns seconds since 1970; if samples have later times, a window ends at the time of the clock.
    Raises: ConfigError: a metric or an entry is wrong, or a condition is pointless because every possible value of the metric meets it, or no value
    meets it.
    """

    def __init__(
        self,
        run_id: RunId,
        pipeline: Mapping[str, Any],
        conditions: Sequence[PromotionCondition],
        models: ModelStorageClient,
        evaluator: EvaluatorClient,
        storage: StorageClient,
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
        """Measure a version and promote it if all conditions hold. The audit trail gets the verdicts whether the version is promoted or not.

        Raises, without a decision: NotFoundError: there is no such version, dataset or sample, or a dataset was registered again meanwhile.
        ConflictError: another version was promoted meanwhile; try again. UnavailableError: a service cannot be reached, or samples arrived or were
        deleted during each attempt. For other errors see `EvaluatorClient.measure`.
        """
        promoted_id = self._models.current(self._run_id).promoted_id
        compares = any(each.compares for each in self.conditions)
        compared_id = promoted_id if compares and promoted_id != model_id else None
        verdicts = self._judge(model_id, compared_id)
        passed = all(verdict.passed for verdict in verdicts)
        if passed:
            self._models.promote(model_id, reason, verdicts, compares=compares, compared_id=compared_id)
        else:
            self._models.refuse_promotion(model_id, reason, verdicts)
        return GateDecision(model_id, passed, verdicts)

    def _judge(self, model_id: int, compared_id: int | None) -> tuple[GateVerdict, ...]:
        # All values of a verdict come from the same registration of a dataset, and from the interval of the dataset's current samples.
        datasets = {name: self._storage.dataset(name) for name in dict.fromkeys(each.dataset for each in self.conditions)}
        intervals = {(name, window): self._interval(datasets[name], window) for name, window in map(_samples, self.conditions)}
        compared = {_samples(each) for each in self.conditions if each.compares} if compared_id is not None else set()
        deleted = {name: datasets[name].num_deleted for name, _ in compared}
        for _ in range(_MEASURED_AT_MOST):
            own = {of: self._measure(model_id, datasets[of[0]], interval) for of, interval in intervals.items()}
            other = {of: self._measure(compared_id or 0, datasets[of[0]], intervals[of]) for of in compared}
            before, deleted = deleted, {name: self._storage.dataset(name).num_deleted for name in deleted}
            # If no sample was deleted, equal numbers of samples mean the same samples.
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
        """Return the interval of a dataset's current samples within the window. Later samples are not in the interval."""
        if found.max_timestamp is None or found.min_timestamp is None:
            raise NotFoundError(
                f"dataset '{found.name}' has no samples, so no version can be measured on it; add some, or name another one"
            )
        if not window:
            return Interval(end=found.max_timestamp + 1)
        now, newest = int(self._clock()), found.max_timestamp
        if found.min_timestamp <= now < newest:
            newest = now  # Samples in the future do not move a window. If all samples are in the future, their times do not follow this clock.
        return Interval(newest + 1 - parse_duration(window), newest + 1)

    def _measure(self, model_id: int, dataset: DatasetInfo, interval: Interval) -> Mapping[str, _Value]:
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
    """Return the numbers of samples on which the metrics of one evaluation pass were measured."""
    return {value.num_listed for value in values.values()}


def _samples(condition: PromotionCondition) -> tuple[str, str]:
    """Return the dataset and the window of a condition. Conditions with the same dataset and window are measured on the same samples."""
    return condition.dataset, condition.window


def judge(condition: PromotionCondition, own: _Value, promoted: _Value | None, *, low_is_good: bool) -> GateVerdict:
    """Judge a version by one condition. Rule: an undefined value does not pass; without a promoted version, a comparison passes.

    Args: promoted: value of the promoted version; None: the condition is not a comparison, or no version is promoted.
    """
    note = own.note if own.value is None else ""
    if condition.compares and promoted is None:
        note = note or "no other version is promoted"
    if promoted is not None and promoted.value is None:
        # The version cannot be worse than a promoted version without a value.
        note = note or f"of the promoted version: {promoted.note}"
    other = None if promoted is None else promoted.value
    passed = own.value is not None and condition.holds(own.value, other, low_is_good=low_is_good)
    return GateVerdict(str(condition), own.value, other, passed, note)


def _value_of(score: Score) -> _Value:
    if score.value is None or not math.isfinite(score.value):
        return _Value(None, score.note or "its value is not finite", score.num_listed)
    return _Value(score.value, num_listed=score.num_listed)
