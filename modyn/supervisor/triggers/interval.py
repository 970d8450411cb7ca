"""What policies have in common that look at data once an interval: when they look, how they warm up, and when an unusual check fires."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any, ClassVar, Final, Self

from pydantic import Field, model_validator

from modyn.config.base import PlacedError, Problem, Section, Severity, load_section
from modyn.config.durations import Duration
from modyn.records import SampleBatch
from modyn.registry import nearest
from modyn.supervisor.criteria import DecisionCriterion
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
UNUSUAL: Final = "unusual"
"""Evidence of each check that has measured: 1 or 0."""
_VERSION: Final = 1


class IntervalConfig(Section):
    """Options of policies that look at data once an interval."""

    evaluation_interval_data_points: int | None = Field(
        None, ge=1, description="samples between two checks, with labels or without", examples=[500]
    )
    evaluation_interval: Duration | None = Field(
        None, ge=1, description="stream time between two checks, in place of evaluation_interval_data_points", examples=["1d"]
    )
    warmup_intervals: int | None = Field(
        None, ge=1, description="checks at the start of the run that fire nothing, while dynamic thresholds calibrate"
    )
    warmup_policy: dict[str, Any] | None = Field(
        None, description="the trigger that fires in their place: a DataAmountTrigger or a TimeTrigger"
    )
    consecutive_checks: int = Field(1, ge=1, description="unusual checks in a row that it takes to fire (hysteresis)")
    min_samples_between_triggers: int = Field(
        0,
        ge=0,
        description="samples with labels since the last trigger that it takes to fire (cool-down); a policy that needs a model fires all the same "
        "until there is one",
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        amount, time = self.evaluation_interval_data_points, self.evaluation_interval
        if amount is None and time is None:
            raise ValueError("give one of evaluation_interval_data_points and evaluation_interval: how often to check")
        if amount is not None and time is not None:
            raise PlacedError("evaluation_interval", "stands beside evaluation_interval_data_points: give one of them")
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
    """A warning of a warm-up whose checks all come before its first trigger, up to which there is nothing to measure by, so that no criterion that
    compares with earlier values calibrates.

    Args: path: where the policy stands.
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


class IntervalTrigger(Trigger):
    """Looks at data at the end of each interval, and fires where that is unusual.

    - *Interval*: every so many samples, or before the first sample past so much stream time, counted over the whole run.
    - *Warm-up*: during the first `warmup_intervals` intervals `warmup_policy` fires, wherever it decides; what is measured meanwhile
      calibrates. Up to its first trigger there is no model and no reference, so these checks measure nothing.
    - *The first trigger*: a run that has no trigger yet fires at the end of its first interval (after warm-up), since there is nothing to
      compare with. A policy that needs a model does so at the end of each interval until a trigger has made one, itself or another policy:
      a selection that keeps earlier samples (`tail_triggers`) fills a batch at last. Where labels come late, it waits for the first label.
    - *Hysteresis and cool-down*: it fires at the `consecutive_checks`-th unusual check in a row, and not before
      `min_samples_between_triggers` samples have come since the last trigger; the row goes on until then.

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
        """Position of the newest trigger; 0: there is none."""
        self.model_id: int | None = None
        """The newest model; None: there is none yet."""
        self._in_a_row = 0
        self._due: tuple[bool, ...] = ()
        """Which of `_policies` decide at the position that was returned last; asked anew before each check."""

    @classmethod
    def problems(cls, options: Mapping[str, Any], path: str) -> list[Problem]:
        """Those of the warm-up policy too."""
        section = options.get("warmup_policy")
        of_warm_up = _check_warm_up(section, f"{path}.warmup_policy") if isinstance(section, Mapping) else []
        return super().problems(options, path) + of_warm_up

    @property
    def sees_next_sample(self) -> bool:
        """Whether one of those that decide does."""
        return any(policy.sees_next_sample for policy in self._policies)

    @property
    def _policies(self) -> tuple[Trigger, ...]:
        """What decides where to check: the interval, and the warm-up policy while it warms up."""
        if self._warm_up is None or not self._is_warming_up:
            return (self._interval,)
        return (self._interval, self._warm_up)

    @property
    def _is_warming_up(self) -> bool:
        return self._warm_up_left > 0

    @property
    def needs_model(self) -> bool:
        """Whether it measures nothing before the run has a model."""
        return False

    @property
    def _has_begun(self) -> bool:
        """Whether the run has what it compares with: a trigger, and a model where it needs one."""
        return self.num_triggers > 0 and not (self.needs_model and self.model_id is None)

    def warning(self) -> str | None:
        """That its triggers have trained no model so far."""
        if not self.needs_model or self.model_id is not None or not self.num_triggers or self._is_warming_up:
            return None
        return (
            "no trigger so far has trained a model, and without one the policy measures nothing and fires at each interval; let a trigger hold "
            "a whole batch: check less often, lower training.batch_size, or select earlier samples too (tail_triggers)"
        )

    def lacking(self) -> str:
        """The checks that its warm-up still lacks, or what it warns of."""
        if not self._is_warming_up:
            return self.warning() or ""
        total = self.config.warmup_intervals or 0
        return f"it warmed up until the end, {total - self._warm_up_left} of {total} checks (warmup_intervals)"

    @abstractmethod
    def measure(self, context: CheckContext) -> Mapping[str, float]:
        """Measure what this policy looks at, as evidence; empty: it cannot be measured yet. Changes nothing."""

    @abstractmethod
    def judge(self, measured: Mapping[str, float], context: CheckContext) -> tuple[bool, Mapping[str, float]]:
        """Whether what was measured, which is not empty, is unusual; and further evidence, such as thresholds. Changes nothing."""

    @abstractmethod
    def remember(self, record: CheckRecord) -> None:
        """Take a check that has measured, just made or replayed."""

    def next_check(self, batch: SampleBatch, start: int) -> int | None:
        """The end of the interval, or where the warm-up policy decides."""
        at, self._due, _ = next_due(self._policies, batch, start)
        return at

    def observe(self, samples: SampleBatch) -> None:
        """Count them."""
        for policy in self._policies:
            policy.observe(samples)

    def check(self, context: CheckContext) -> Check:
        """See the class."""
        measured = self.measure(context) if self._due[0] else {}
        unusual, evidence = False, dict[str, float]()
        if measured:
            unusual, more = self.judge(measured, context)
            evidence = {**measured, **more, UNUSUAL: float(unusual)}
        if self._warm_up is not None and self._is_warming_up:
            fires = self._due[1] and self._warm_up.check(context).fires
            return Check(fires, evidence | {"warming_up": 1.0} if measured else {}, self.memory(measured))
        if not self._has_begun:
            # Nothing can be trained on before a label has come.
            fires = context.num_pending > 0
            return Check(fires, evidence | ({"first_trigger": 1.0} if fires else {}), self.memory(measured))
        in_a_row = self._in_a_row + 1 if unusual else 0
        ready = context.num_pending >= self.config.min_samples_between_triggers
        if measured and self.config.consecutive_checks > 1:
            evidence["unusual_in_a_row"] = float(in_a_row)
        if measured and not ready:
            evidence["cooling_down"] = 1.0
        return Check(in_a_row >= self.config.consecutive_checks and ready, evidence, self.memory(measured))

    def memory(self, measured: Mapping[str, float]) -> Mapping[str, Any]:
        """What `remember` needs beside the evidence, as JSON. Changes nothing."""
        return {}

    def checked(self, record: CheckRecord) -> None:
        """Count the interval, the warm-up and the unusual checks in a row."""
        was_warming_up, policies = self._is_warming_up, self._policies
        for policy, due in zip(policies, self._due, strict=True):
            if due:
                policy.checked(record)
        if not self._due[0]:
            return
        self._warm_up_left = max(0, self._warm_up_left - 1)
        if UNUSUAL in record.evidence:
            self.remember(record)
        self.interval_ended()
        if not was_warming_up:
            self._in_a_row = self._in_a_row + 1 if record.evidence.get(UNUSUAL) else 0

    def interval_ended(self) -> None:
        """Begin the next interval behind the samples so far. Called once an interval, also where nothing was measured."""

    def triggered(self, outcome: TriggerOutcome) -> None:
        """Begin anew behind it."""
        self.num_triggers += 1
        self.last_trigger = outcome.position
        self._in_a_row = 0

    def trained(self, outcome: TriggerOutcome) -> None:
        """Go on with the new model."""
        self.model_id = outcome.model_id

    def own_state(self) -> dict[str, Any]:
        """What a subclass keeps beside this class, as JSON; the names are its own."""
        return {}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Restore `own_state()`."""

    def state(self) -> dict[str, Any]:
        """Where it stands, by name."""
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
        """Restore it. Raises: CorruptStateError."""
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
