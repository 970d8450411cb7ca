"""Forecast the seconds of trainings that a simulation does not make, from the trainings of a run. Pure functions."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from modyn.errors import InvalidArgumentError
from modyn.supervisor.journal.records import TriggerRecord
from modyn.supervisor.triggers.base import TriggerOutcome
from modyn.supervisor.triggers.measures.training_seconds import TrainingSeconds, TrainingTime, fit_seconds, vary

_STAGES: Final = ("select", "train", "store")


def training_seconds(per_trigger: float | None, per_sample: float | None) -> TrainingSeconds | None:
    """Return the seconds of a training from a user's options; None without options. Raises InvalidArgumentError: a value is negative or no number."""
    for name, value in (("seconds_per_trigger", per_trigger), ("seconds_per_sample", per_sample)):
        check_amount(name, value)
    return None if per_trigger is None and per_sample is None else TrainingSeconds(per_trigger or 0.0, per_sample or 0.0)


def check_amount(name: str, value: float | None) -> None:
    """Raise InvalidArgumentError if a value of the user is negative or not a number. None is valid."""
    if value is not None and not (isinstance(value, int | float) and 0 <= value < math.inf):
        raise InvalidArgumentError(f"{name} is {value!r}; a number from 0 on is expected")


@dataclass(frozen=True, slots=True)
class SelectionSize:
    """The size of a trigger set by the rule of the selection: a share of the samples with labels since an earlier trigger, but at most a limit."""

    tail_triggers: int | None = 0
    """The selection also uses the samples of this number of earlier triggers. None: all history. 0: only samples since the last trigger."""
    limit: int = -1
    """Largest number of samples; -1: no limit."""
    part: float = 1.0

    def of(self, positions: Sequence[int], position: int) -> int:
        """Return the size of the trigger set after `position` samples with labels. Args: positions: positions of the earlier triggers."""
        first = 0 if self.tail_triggers is None else len(positions) - 1 - self.tail_triggers
        start = positions[first] if self.tail_triggers is not None and first >= 0 else 0
        size = round((position - start) * self.part)
        return size if self.limit < 0 else min(size, self.limit)


class TrainingForecast:
    """Forecasts the outcome of a trigger: its trigger set, its model and its seconds.

    If the reference run has a trigger at the same position, and the two previous triggers also have the same position, the outcome is from the run's
    journal. Otherwise the number of samples follows the rule of the selection. `fit_seconds` forecasts the seconds, as for cost triggers, but from
    the sizes of trigger sets. The model is the run's nearest earlier model, or the first model if there is no earlier model.
    """

    def __init__(
        self,
        run: Sequence[TriggerRecord] = (),
        selection: Mapping[str, Any] | None = None,
        seconds: TrainingSeconds | None = None,
        model_id: int | None = None,
    ) -> None:
        """Args: run: triggers of the reference run, in order. selection: section `selection_strategy` of the run's pipeline. None: each trigger
        trains on all samples since the last trigger. seconds: seconds of a training, which replace the seconds of the run's trainings. model_id:
        model of all triggers, which replaces the models of the run.
        """
        self._model_id = model_id
        self._fixed = seconds
        run = [record for record in run if not record.online]
        trained = [record for record in run if record.model_id is not None and record.num_keys]
        self._positions = [record.position for record in trained]
        self._models = [record.model_id for record in trained]
        # A simulated trigger has the same new samples as a trigger of the run if both triggers start and end at the same positions.
        before = [0, *(record.position for record in run)]
        self._journalled = {(start, record.position): record for start, record in zip(before, run, strict=False)}
        self._size = _selection_size(selection, run)
        self._seconds = _fit_stages(trained) if seconds is None else {"train": seconds}
        self._trained = [_training_time(record, "train") for record in trained if "train" in record.seconds]
        passed = [record for record in trained if record.forward_s is not None and record.num_trained]
        self._pass_s = (
            sum(record.forward_s or 0.0 for record in passed) / sum(record.num_trained or 0 for record in passed)
            if passed
            else None
        )
        """Seconds that the model takes for one sample; None if the seconds are not known."""
        keys = sum(record.num_keys or 0 for record in trained)
        self._trained_per_key = sum(record.num_trained or 0 for record in trained) / keys if keys else 1.0

    @property
    def knows_seconds(self) -> bool:
        """Whether seconds can be forecast."""
        return bool(self._seconds)

    @property
    def note(self) -> str:
        """Sentence for users that explains how seconds are forecast; empty if the seconds are not known."""
        if not self._seconds:
            return ""
        parts = [seconds for stage, seconds in self._seconds.items() if stage != "store"]  # `store` is a part of `train`
        constant, slope = sum(part.per_trigger for part in parts), sum(part.per_sample for part in parts)
        rule = f"{constant:.3g} s a trigger and {1000 * slope:.3g} s a thousand samples of its trigger set"
        if self._fixed is not None:
            return f"{rule}, as given"
        number, sizes = len(self._trained), [training.num_samples for training in self._trained]
        if vary(sizes):
            return f"{rule}, by regression over the run's {number} trainings, of {min(sizes):,} to {max(sizes):,} samples"
        about = f"the run's {number} trainings, all of about {round(sum(sizes) / number):,} samples"
        if any(training.batches_s is not None for training in self._trained):
            return f"{rule}, by what batches and all else took in {about}"
        return (
            f"{rule}: {about}, do not say how their seconds depend on samples; give --seconds-per-trigger and --seconds-per-sample, or a run whose "
            "triggers vary"
        )

    def outcome(self, fired: TriggerOutcome, positions: Sequence[int], numbers: Sequence[int] | None = None) -> TriggerOutcome:
        """Return the outcome of a trigger. `model_id` is None if the run trained nothing at this trigger, or no sample had a label.

        Args: positions: positions of the policy's earlier triggers. numbers: number of samples with labels at each of these positions, and
        now; None if all samples have labels.
        """
        *before, now = numbers or [*positions, fired.position]
        same = self._journalled.get((positions[-1] if positions else 0, fired.position))
        num_keys = self._size.of(before, now) if same is None or same.num_keys is None else same.num_keys
        # The run trained nothing at this trigger, for example because its set was empty.
        if same is not None and same.num_keys is not None and same.model_id is None:
            return replace(fired, num_keys=num_keys)
        if not num_keys:
            return replace(fired, num_keys=0)
        num_trained = round(num_keys * self._trained_per_key)
        if same is not None and same.num_trained is not None:
            num_trained = same.num_trained
        model_id = self._model_at(fired) if self._model_id is None else self._model_id
        # If the run has a trigger between the same two positions, the measured numbers of this trigger replace the forecast.
        use_journal = same is not None and self._fixed is None
        if same is not None and use_journal:
            seconds: Mapping[str, float] = same.outcome().seconds
            batches_s, forward_s = same.batches_s, same.forward_s
        else:
            seconds, batches_s = self._forecast(num_keys), self._batches_s(num_keys)
            forward_s = None if self._pass_s is None else self._pass_s * num_trained
        took = replace(fired, seconds=seconds, batches_s=batches_s, forward_s=forward_s)
        return replace(took, model_id=model_id, num_keys=num_keys, num_trained=num_trained)

    def _batches_s(self, num_keys: int) -> float | None:
        """Return the forecast seconds of batches; None if neither the options nor the trainings contain the seconds."""
        known = self._fixed is not None or any(training.batches_s is not None for training in self._trained)
        return self._seconds["train"].per_sample * num_keys if known else None

    def _model_at(self, fired: TriggerOutcome) -> int | None:
        if not self._models:
            return fired.trigger_id  # No policy uses this number, because no policy uses a model without a run.
        return self._models[max(0, bisect_right(self._positions, fired.position) - 1)]

    def _forecast(self, num_keys: int) -> Mapping[str, float]:
        if not self._seconds:
            return _UnknownSeconds()
        stages = {stage: seconds.of(num_keys) for stage, seconds in self._seconds.items()}
        return {**stages, "total": stages.get("select", 0.0) + stages["train"]}


class _UnknownSeconds(Mapping[str, float]):
    """The seconds of a training without a forecast. A read raises an error."""

    def __getitem__(self, stage: str) -> float:
        raise self._error()

    def __iter__(self) -> Iterator[str]:
        raise self._error()

    def __len__(self) -> int:
        raise self._error()

    def _error(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            "it forecasts the time of trainings, and none is known: name a run whose trainings are the reference with --run, or give "
            "--seconds-per-sample and --seconds-per-trigger"
        )


def _fit_stages(trained: Sequence[TriggerRecord]) -> dict[str, TrainingSeconds]:
    """Fit the seconds of each stage; empty if no training is known."""
    found = {}
    for stage in _STAGES:
        known = [_training_time(record, stage) for record in trained if stage in record.seconds]
        if known:
            found[stage] = fit_seconds(known)
    return found if "train" in found else {}


def _training_time(record: TriggerRecord, stage: str) -> TrainingTime:
    return TrainingTime(record.num_keys or 0, record.seconds[stage], record.batches_s if stage == "train" else None)


def _selection_size(selection: Mapping[str, Any] | None, run: Sequence[TriggerRecord]) -> SelectionSize:
    if selection is None:
        return SelectionSize()
    rule = SelectionSize(selection.get("tail_triggers"), int(selection.get("limit", -1)))
    positions = [record.position - record.num_waiting for record in run]
    selected = [(record.num_keys, rule.of(positions[:at], positions[at])) for at, record in enumerate(run) if record.num_keys]
    expected = sum(size for _, size in selected)
    part = sum(keys for keys, _ in selected) / expected if expected else 1.0
    # Deletions make trigger sets slightly smaller. If trigger sets are much smaller, the selection chooses only a share of the samples.
    return rule if part > 0.99 else replace(rule, part=part)
