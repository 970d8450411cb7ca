"""Base class of policies that measure data once per interval. The class decides when to measure, how to warm up, and when an unusual check fires."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, ClassVar, Final, Self

from pydantic import Field, model_validator

from modyn.config.base import PlacedError, Problem, Section, Severity, load_section
from modyn.config.durations import Duration
from modyn.evaluator.client import DriftQuestion
from modyn.records import SampleBatch
from modyn.registry import nearest
from modyn.supervisor.criteria import DecisionCriterion
from modyn.supervisor.evidence import (
    COOLING_DOWN,
    FIRST_TRIGGER,
    IN_A_ROW,
    UNUSUAL,
    WARMING_UP,
    Evidence,
    EvidenceKind,
    value_of,
)
from modyn.supervisor.triggers.amount import DataAmountConfig, DataAmountTrigger, SampleAmountTrigger
from modyn.supervisor.triggers.base import (
    Check,
    CheckContext,
    CheckRecord,
    Trigger,
    TriggerContext,
    TriggerOutcome,
    next_due,
    read_state,
)
from modyn.supervisor.triggers.time import TimeConfig, TimeTrigger

WARM_UP_POLICIES: Final[Mapping[str, type[Trigger]]] = {"DataAmountTrigger": DataAmountTrigger, "TimeTrigger": TimeTrigger}
_VERSION: Final = 1


class IntervalConfig(Section):
    """Options of policies that measure data once per interval."""

    evaluation_interval_data_points: int | None = Field(
        None, ge=1, description="number of samples between two checks, with or without labels", examples=[500]
    )
    evaluation_interval: Duration | None = Field(
        None, ge=1, description="stream time between two checks, instead of evaluation_interval_data_points", examples=["1d"]
    )
    warmup_intervals: int | None = Field(
        None, ge=1, description="number of first checks of the run, which fire nothing, while dynamic thresholds calibrate"
    )
    warmup_policy: dict[str, Any] | None = Field(
        None, description="the trigger that fires instead of these checks: a DataAmountTrigger or a TimeTrigger"
    )
    consecutive_checks: int = Field(
        1, ge=1, description="number of successive unusual checks that are needed to fire (hysteresis)"
    )
    min_samples_between_triggers: int = Field(
        0,
        ge=0,
        description="number of samples with labels since the last trigger that are needed to fire (cool-down); without effect while a policy "
        "that needs a model has none",
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        amount, time = self.evaluation_interval_data_points, self.evaluation_interval
        if amount is None and time is None:
            raise ValueError("give one of evaluation_interval_data_points and evaluation_interval: how often to check")
        if amount is not None and time is not None:
            raise PlacedError("evaluation_interval", "is given as well as evaluation_interval_data_points: give one of them")
        if self.warmup_policy is None and self.warmup_intervals is not None:
            raise PlacedError("warmup_intervals", "needs warmup_policy, the trigger that fires meanwhile: give both or neither")
        if self.warmup_policy is not None and self.warmup_intervals is None:
            raise PlacedError("warmup_policy", "needs warmup_intervals, for how many checks it fires: give both or neither")
        return self


def _check_warm_up(section: Mapping[str, Any], path: str) -> list[Problem]:
    policy = WARM_UP_POLICIES.get(str(section.get("id")))
    if policy is None:
        hint = nearest(str(section.get("id")), list(WARM_UP_POLICIES)) or ";"
        message = f"{section.get('id')!r} cannot warm up{hint} write {' or '.join(WARM_UP_POLICIES)}"
        return [Problem(f"{path}.id", message)]
    return policy.problems(_options(section), path)


def idle_warm_up(config: IntervalConfig, criteria: Iterable[type[DecisionCriterion]], path: str) -> list[Problem]:
    """Warn if all checks of a warm-up are made before its first trigger. These checks measure nothing, and criteria do not calibrate.

    Args: path: path of the policy's section.
    """
    if not any(criterion.compares_with_earlier() for criterion in criteria):
        return []
    warm_up, interval = config.warmup_policy or {}, config.evaluation_interval_data_points
    first = warm_up.get("num_samples")
    if config.evaluation_interval is not None:
        interval, first = config.evaluation_interval, warm_up.get("every")
        first = None if first is None else load_section(TimeConfig, {"every": first}).every
    if interval is None or first is None or config.warmup_intervals is None or config.warmup_intervals * interval > first:
        return []
    message = f"none of these checks measures anything: up to its first trigger, warmup_policy has {first // interval} of them"
    return [Problem(f"{path}.warmup_intervals", f"{message}; write more, so that the others calibrate", Severity.WARNING)]


def _options(section: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in section.items() if name != "id"}


@dataclass(frozen=True, slots=True)
class CheckMeasurement:
    """The measurements of a policy at a check."""

    evidence: Sequence[Evidence] = ()
    """Measured numbers; empty if nothing can be measured yet."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """See `Check.memory`."""


class IntervalTrigger(Trigger):
    """Measures data at the end of each interval, and fires if the data are unusual.

    - *Interval*: ends after a given number of samples, or before the first sample of the next period of stream time, counted over the whole run.
    - *Warm-up*: during the first `warmup_intervals` intervals `warmup_policy` fires, at the positions at which it decides. Measurements in the
      warm-up calibrate criteria. Before the first trigger, checks measure nothing, because there is no model and no reference.
    - *The first trigger*: if the run has no trigger yet, the policy fires at the end of the first interval after the warm-up, because there is
      nothing to compare with. A policy that needs a model fires at the end of each interval until a trigger of this or another policy has made a
      model. One interval may be too small for a batch, and a selection that keeps earlier samples (`tail_triggers`) then fills a batch after several
      triggers. If labels arrive late, the policy waits for the first label.
    - *Hysteresis and cool-down*: the policy fires at the `consecutive_checks`-th unusual check in a row, but not before
    `min_samples_between_triggers` samples have arrived since the last trigger. Unusual checks in the cool-down also count in the row.

    A subclass measures and judges: `measure`, `judge` and `remember`.
    """

    Config: ClassVar[type[IntervalConfig]] = IntervalConfig
    config: IntervalConfig

    def __init__(self, config: IntervalConfig, context: TriggerContext | None = None) -> None:
        super().__init__(config, context)
        self.config = config
        self._interval: Trigger
        if config.evaluation_interval is not None:
            self._interval = TimeTrigger(TimeConfig(every=config.evaluation_interval), context)
            self.late_span_s = config.evaluation_interval
        else:
            assert config.evaluation_interval_data_points is not None
            self._interval = SampleAmountTrigger(DataAmountConfig(num_samples=config.evaluation_interval_data_points), context)
        self._warm_up: Trigger | None = None
        if config.warmup_policy is not None:
            policy = WARM_UP_POLICIES[config.warmup_policy["id"]]
            self._warm_up = policy(load_section(policy.Config, _options(config.warmup_policy)), context)
        self._warm_up_left = config.warmup_intervals or 0
        self.num_triggers = 0
        self.last_trigger = 0
        """Position of the newest trigger; 0 before the first trigger."""
        self.model_id: int | None = None
        """The newest model; None before the first model."""
        self._in_a_row = 0
        self._due: tuple[bool, ...] = ()
        """Which of `_policies` decide at the last returned position. The value is set again before each check."""

    @classmethod
    def problems(cls, options: Mapping[str, Any], path: str) -> list[Problem]:
        """Find mistakes in the options of the policy and its warm-up policy."""
        section = options.get("warmup_policy")
        warm_up = _check_warm_up(section, f"{path}.warmup_policy") if isinstance(section, Mapping) else []
        return super().problems(options, path) + warm_up

    @property
    def sees_next_sample(self) -> bool:
        """Whether one of the deciding policies needs the sample after a position."""
        return any(policy.sees_next_sample for policy in self._policies)

    @property
    def _policies(self) -> tuple[Trigger, ...]:
        """The policies that decide where to check: the interval, and the warm-up policy during the warm-up."""
        if self._warm_up is None or not self._is_warming_up:
            return (self._interval,)
        return (self._interval, self._warm_up)

    @property
    def _is_warming_up(self) -> bool:
        return self._warm_up_left > 0

    @property
    def needs_model(self) -> bool:
        """Whether the policy measures nothing before the run has a model."""
        return False

    @property
    def _can_compare(self) -> bool:
        """Whether a comparison is possible: the run has a trigger, and a model if the policy needs a model."""
        return self.num_triggers > 0 and not (self.needs_model and self.model_id is None)

    def warning(self) -> str | None:
        """Return the warning that the triggers have trained no model so far."""
        if not self.needs_model or self.model_id is not None or not self.num_triggers or self._is_warming_up:
            return None
        return (
            "no trigger so far has trained a model, and without one the policy measures nothing and fires at each interval; let a trigger hold "
            "a whole batch: check less often, lower training.batch_size, or select earlier samples too (tail_triggers)"
        )

    def end_warning(self) -> str:
        """Return the remaining checks of the warm-up, or the warning."""
        if not self._is_warming_up:
            return self.warning() or ""
        total = self.config.warmup_intervals or 0
        return f"it warmed up until the end, {total - self._warm_up_left} of {total} checks (warmup_intervals)"

    @abstractmethod
    def measure(self, context: CheckContext) -> CheckMeasurement:
        """Measure the numbers of this policy. Changes nothing."""

    @abstractmethod
    def judge(self, measured: Sequence[Evidence], context: CheckContext) -> tuple[bool, Sequence[Evidence]]:
        """Return whether a measurement (not empty) is unusual, and its evidence with verdicts and thresholds. Changes nothing."""

    @abstractmethod
    def remember(self, record: CheckRecord) -> None:
        """Record a check with measurements. The check was just made, or is from the journal."""

    def next_check(self, batch: SampleBatch, start: int) -> int | None:
        """Return the end of the interval, or the position at which the warm-up policy decides."""
        at, self._due, _ = next_due(self._policies, batch, start)
        return at

    def observe(self, samples: SampleBatch) -> None:
        """Count the samples."""
        for policy in self._policies:
            policy.observe(samples)

    def questions(self, context: CheckContext) -> Sequence[DriftQuestion]:
        """Return the question of `drift_question` at the end of an interval."""
        question = self.drift_question() if self._due[0] else None
        return () if question is None else (question,)

    def drift_question(self) -> DriftQuestion | None:
        """Return the question about drift that `measure` asks here, or None."""
        return None

    def check(self, context: CheckContext) -> Check:
        """Decide by the rules that the class documents."""
        # Checks during a warm-up also measure and judge, because criteria need these values for calibration. The verdicts do not fire.
        measured = self.measure(context) if self._due[0] else CheckMeasurement()
        unusual, evidence = False, list[Evidence]()
        if measured.evidence:
            unusual, judged = self.judge(measured.evidence, context)
            evidence += [*judged, Evidence.flag(UNUSUAL, is_set=unusual)]
        if self._warm_up is not None and self._is_warming_up:
            fires = self._due[1] and self._warm_up.check(context).fires
            return Check(fires, [*evidence, Evidence.flag(WARMING_UP)] if evidence else [], measured.memory)
        if not self._can_compare:
            # A training needs at least one sample whose label has arrived.
            fires = context.num_pending > 0
            return Check(fires, [*evidence, Evidence.flag(FIRST_TRIGGER)] if fires else evidence, measured.memory)
        # `checked` changes the counter itself, after the check is recorded.
        in_a_row = self._in_a_row + 1 if unusual else 0
        is_ready = context.num_pending >= self.config.min_samples_between_triggers
        if evidence and self.config.consecutive_checks > 1:
            evidence.append(Evidence.count(IN_A_ROW, in_a_row))
        if evidence and not is_ready:
            evidence.append(Evidence.flag(COOLING_DOWN))
        return Check(in_a_row >= self.config.consecutive_checks and is_ready, evidence, measured.memory)

    def checked(self, record: CheckRecord) -> None:
        """Count the interval, the warm-up and the unusual checks in a row."""
        was_warming_up, policies = self._is_warming_up, self._policies
        for policy, due in zip(policies, self._due, strict=True):
            if due:
                policy.checked(record)
        if not self._due[0]:
            return
        self._warm_up_left = max(0, self._warm_up_left - 1)
        unusual = value_of(record.evidence, UNUSUAL, EvidenceKind.FLAG)
        if unusual is not None:
            self.remember(record)
        self.interval_ended()
        if not was_warming_up:
            self._in_a_row = self._in_a_row + 1 if unusual else 0

    def interval_ended(self) -> None:
        """Start the next interval after the samples so far. Called once an interval, even if nothing was measured."""

    def triggered(self, outcome: TriggerOutcome) -> None:
        """Count the trigger, and count unusual checks in a row from 0."""
        self.num_triggers += 1
        self.last_trigger = outcome.position
        self._in_a_row = 0

    def trained(self, outcome: TriggerOutcome) -> None:
        """Record the new model."""
        self.model_id = outcome.model_id

    def own_state(self) -> dict[str, Any]:
        """Return the state of a subclass, as JSON; the subclass chooses the names."""
        return {}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Restore `own_state()`."""

    def state(self) -> dict[str, Any]:
        """Return the state that survives a restart, by name."""
        return {
            "version": _VERSION,
            "interval": self._interval.state(),
            "warm_up": self._warm_up.state() if self._warm_up is not None else None,
            "warm_up_left": self._warm_up_left,
            "num_triggers": self.num_triggers,
            "last_trigger": self.last_trigger,
            "model_id": self.model_id,
            "in_a_row": self._in_a_row,
            "own": self.own_state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`. Raises: CorruptStateError."""
        optional = {"warm_up": (dict, NoneType), "model_id": (int, NoneType)}
        numbers = dict.fromkeys(("warm_up_left", "num_triggers", "last_trigger", "in_a_row"), (int,))
        fields: dict[str, tuple[type, ...]] = {"interval": (dict,), "own": (dict,), **numbers, **optional}
        values = read_state(type(self).__name__, state, _VERSION, fields)
        self._interval.load_state(values["interval"])
        if self._warm_up is not None and values["warm_up"] is not None:
            self._warm_up.load_state(values["warm_up"])
        self._warm_up_left = values["warm_up_left"]
        self.num_triggers, self.last_trigger = values["num_triggers"], values["last_trigger"]
        self.model_id, self._in_a_row = values["model_id"], values["in_a_row"]
        self.load_own_state(values["own"])
