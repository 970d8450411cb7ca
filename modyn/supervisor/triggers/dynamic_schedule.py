"""Policy that leaves time for predictions between trainings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from pydantic import Field

from modyn.records import SampleBatch
from modyn.supervisor.evidence import PAUSED, Evidence, find, is_flagged, required_value
from modyn.supervisor.triggers.base import CheckContext, CheckRecord, TriggerContext, TriggerOutcome
from modyn.supervisor.triggers.interval import CheckMeasurement, IntervalConfig, IntervalTrigger
from modyn.supervisor.triggers.measures.questions import LoadQuestion
from modyn.supervisor.triggers.measures.training_clock import TrainingClock
from modyn.tolerance import exceeds

SINCE: Final = "since_s"
RATE: Final = "prediction_rate"
LATENCY: Final = "prediction_latency_s"
P99: Final = "p99_latency_s"


class DynamicScheduleConfig(IntervalConfig):
    """Fires when the machine has time for a training, by the seconds of the last steps and the rate and latency of predictions."""

    slack: float = Field(
        1.0,
        ge=0,
        allow_inf_nan=False,
        description="time for predictions between two trainings, as a multiple of the time that predictions during the last training take; 2 or "
        "more leaves room for bursts, less than 1 trains earlier",
    )
    max_share: float = Field(
        0.5, gt=0, le=1, description="largest share of the time that trainings take, by the duration of the last one; 1: no bound"
    )
    latency_limit_ms: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="milliseconds; no trigger fires while the p99 latency of predictions is above this; none: no limit",
        examples=[20],
    )


class DynamicScheduleTrigger(IntervalTrigger):
    """Fires when the time that predictions need has passed since the last training (dynamic scheduling: Continuous Training of Machine
    Learning Pipelines, section 5; formula: Derakhshan and others: Continuous Deployment of Machine Learning Pipelines, EDBT'19, section 4.1).

    T is the time of the last training in seconds, with selection and storing. pr is the number of predictions per second, and pl is the number of
    seconds that one prediction takes. After a training, the policy waits `slack` · T · pr · pl seconds. The policy waits at least T · (1 /
    `max_share` - 1), so that trainings take at most this share of the time. For an `online.trigger`, T is the time of the last batch of steps, and a
    retraining starts the wait again. There is no wait before the first training.

    *In production* the servers of this run (`modyn serve`) measure pr and pl over the last 5 s, and a clock measures the wait. While the p99 latency
    is above `latency_limit_ms`, nothing fires. Samples then wait, and the next training uses all waiting samples; steps use at most
    `online.max_samples`. A running training continues. Without a server there are no predictions to wait for.

    *In an experiment* each sample is one prediction, with the latency that the last training measured for one sample. The wait is measured in stream
    time, in which the last training takes its measured seconds. There is no p99, and `latency_limit_ms` has no effect.

    The policy decides at the end of an interval, if samples wait. Evidence: `since_s` with the wait as threshold, `last_training_s` (T),
    `prediction_rate`, `prediction_latency_s`; with servers `p99_latency_s`, judged if there is a limit, and the flag `paused` if only the limit keeps
    the policy from firing.

    >>> import numpy as np
    >>> from modyn.testing.decisions import decide  # each of its trainings takes 1.5 s
    >>> trigger = DynamicScheduleTrigger(DynamicScheduleConfig(evaluation_interval_data_points=1, max_share=0.25))
    >>> times = np.arange(1, 13)  # one sample a second
    >>> [check.position for check in decide(trigger, [SampleBatch(times, times, times)]) if check.fires]
    [1, 7]
    """

    Config: ClassVar[type[IntervalConfig]] = DynamicScheduleConfig
    weighs_seconds = True
    config: DynamicScheduleConfig

    def __init__(self, config: DynamicScheduleConfig, context: TriggerContext | None = None) -> None:
        super().__init__(config, context)
        self._clock = TrainingClock(online=self.context.online)
        self._pass_s = 0.0
        """Mean seconds of the model's passes for one sample in the last training."""
        self._paused = False

    @property
    def needs_model(self) -> bool:
        """True, because a model answers predictions."""
        return True

    def observe(self, samples: SampleBatch) -> None:
        """Count the samples, and update the stream time."""
        super().observe(samples)
        self._clock.observe(samples)

    def measure(self, context: CheckContext) -> CheckMeasurement:
        """Measure the times and the rate of predictions, if there are a model and waiting samples."""
        if not self._can_compare or not context.num_pending:
            return CheckMeasurement()
        load = context.source.ask(LoadQuestion())
        rate, latency, p99 = (context.position - self.last_trigger) / max(1, self._clock.stream_s), self._pass_s, list[Evidence]()
        if load is not None:
            rate, latency = load.rate, load.mean_s
            p99 = [Evidence(P99, load.p99_s)] if load.num_servers else []
        since = Evidence(SINCE, self._clock.since_s(load))
        predictions = Evidence(RATE, rate), Evidence(LATENCY, latency)
        return CheckMeasurement([since, *predictions, *p99, Evidence("last_training_s", self._clock.last_s)])

    def judge(self, measured: Sequence[Evidence], context: CheckContext) -> tuple[bool, Sequence[Evidence]]:
        """Return whether the wait is over and predictions are quick enough."""
        rate, latency, since = (required_value(measured, series) for series in (RATE, LATENCY, SINCE))
        for_predictions = self.config.slack * self._clock.last_s * rate * latency
        wait = max(for_predictions, self._clock.rest_s(self.config.max_share))
        is_over, p99, limit_ms = not exceeds(wait, since), find(measured, P99), self.config.latency_limit_ms
        judged = {SINCE: (wait, is_over)}
        is_slow = False
        if limit_ms is not None and p99 is not None:
            is_slow = p99.value > limit_ms / 1000
            judged[P99] = limit_ms / 1000, is_slow
        found = [
            replace(one, threshold=judged[one.series][0], unusual=judged[one.series][1]) if one.series in judged else one
            for one in measured
        ]
        return is_over and not is_slow, [*found, *([Evidence.flag(PAUSED)] if is_over and is_slow else [])]

    def remember(self, record: CheckRecord) -> None:
        """Store whether the policy pauses."""
        self._paused = is_flagged(record.evidence, PAUSED)

    def triggered(self, outcome: TriggerOutcome) -> None:
        """Start the wait again."""
        super().triggered(outcome)
        self._clock.triggered()
        self._paused = False

    def ended(self, outcome: TriggerOutcome) -> None:
        """Record the seconds of a training with or without a model, and the seconds of one sample."""
        super().ended(outcome)
        self._clock.ended(outcome)
        if outcome.forward_s is not None and outcome.num_trained:
            self._pass_s = outcome.forward_s / outcome.num_trained

    def warning(self) -> str | None:
        """Return the warning that predictions are too slow for a training."""
        if not self._paused:
            return super().warning()
        what = "steps of proactive training pause" if self.context.online else "trainings pause"
        return (
            f"{what}: the p99 latency of predictions is above latency_limit_ms ({self.config.latency_limit_ms:g} ms); the samples that wait are "
            "learned from once it is not"
        )

    def own_state(self) -> dict[str, Any]:
        """Return the times by name."""
        return {**self._clock.state(), "pass_s": self._pass_s, "paused": self._paused}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Restore the times."""
        self._clock.load_state(state)
        self._pass_s, self._paused = state["pass_s"], state["paused"]
