"""Fires when there is time for it: by the seconds that the last steps took, and the rate and latency of predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from modyn.records import SampleBatch
from modyn.supervisor.triggers.base import CheckContext, CheckRecord, TriggerContext, TriggerOutcome
from modyn.supervisor.triggers.interval import IntervalConfig, IntervalTrigger
from modyn.supervisor.triggers.training_clock import TrainingClock
from modyn.tolerance import exceeds

SINCE = "since_s"
P99 = "p99_latency_s"
PAUSED = "paused"
"""Evidence: 1 where it would fire, if predictions were not too slow."""


class DynamicScheduleConfig(IntervalConfig):
    """Fires when there is time for it: by the seconds that the last steps took, and the rate and latency of predictions."""

    slack: float = Field(
        1.0,
        ge=0,
        allow_inf_nan=False,
        description="how much time predictions get between two trainings, in units of what those that came during the last one take: 2 and more "
        "leaves room for bursts of requests, less than 1 trains sooner",
    )
    max_share: float = Field(
        0.5, gt=0, le=1, description="share of time that trainings take at most, by the time of the last one; 1: no bound"
    )
    latency_limit_ms: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="milliseconds: while the p99 latency of predictions is above it nothing fires; none = whatever it is",
        examples=[20],
    )


class DynamicScheduleTrigger(IntervalTrigger):
    """Fires when so much time has passed since the last training as predictions need: the dynamic scheduling of proactive training (Continuous
    Training of Machine Learning Pipelines, section 5, "dynamic scheduling"; the formula is that of its successor: Derakhshan and others: Continuous
    Deployment of Machine Learning Pipelines, EDBT'19, section 4.1).

    After a training that took T seconds, the next one waits T' = `slack` · T · pr · pl seconds, where pr is the rate of predictions (per second)
    and pl their latency (seconds for one): T · pr of them came meanwhile, and take T · pr · pl. It waits at least
    T · (1 / `max_share` - 1), so that trainings take at most this share of the time. As `online.trigger`, trainings are stretches of steps, and
    T is that of the last stretch; a retraining begins the wait anew. Before the first T is known nothing waits. T is the whole time: selection,
    training and storing the model.

    *In production* rate and latency are those of the servers of this run (`modyn serve`), which report them once a second, over all requests of
    the last 5 s; time is the clock's. While their p99 latency is above `latency_limit_ms` nothing fires: predictions go first. The samples
    that come meanwhile wait, and the next training takes them all (steps: at most `online.max_samples`). A training that has begun goes on. Where
    no server reports, there are no predictions to wait for.

    *In an experiment* there is no server: each sample is one prediction, of the latency that the last training measured (seconds of the model's
    passes by the samples in them), and time is that of the stream, in which the last training takes its seconds. So it decides as if the stream
    came in its own time. There is no p99, and `latency_limit_ms` has no effect.

    It decides where samples come: at the end of an interval. Evidence: `since_s`, `since_s.threshold` (T'), `since_s.unusual`, `last_training_s`
    (T), `prediction_rate`, `prediction_latency_s`; of servers also `p99_latency_s`, with a limit `p99_latency_s.threshold` and
    `p99_latency_s.unusual`; `paused`, where it would fire but for that limit. A resumed run takes them from its journal.
    """

    Config: ClassVar[type[IntervalConfig]] = DynamicScheduleConfig
    config: DynamicScheduleConfig

    def __init__(self, config: DynamicScheduleConfig, context: TriggerContext | None = None) -> None:
        super().__init__(config, context)
        self._clock = TrainingClock(online=self.context.online)
        self._pass_s = 0.0
        """Of one sample through the model, in the last training."""
        self._paused = False

    @property
    def needs_model(self) -> bool:
        """What answers predictions."""
        return True

    def observe(self, samples: SampleBatch) -> None:
        """Count them, and let the stream's time go on."""
        super().observe(samples)
        self._clock.observe(samples)

    def measure(self, context: CheckContext) -> Mapping[str, float]:
        """What there is to weigh, once there are a model and samples that wait."""
        if not self._has_begun or not context.num_pending:
            return {}
        load = context.source.load()
        since = self._clock.since_s(load)
        if load is None:
            rate = (context.position - self.last_trigger) / max(1, self._clock.stream_s)
            measured = {SINCE: since, "prediction_rate": rate, "prediction_latency_s": self._pass_s}
        else:
            measured = {SINCE: since, "prediction_rate": load.rate, "prediction_latency_s": load.mean_s}
            if load.num_servers:
                measured[P99] = load.p99_s
        return {**measured, "last_training_s": self._clock.last_s}

    def judge(self, measured: Mapping[str, float], context: CheckContext) -> tuple[bool, Mapping[str, float]]:
        """Whether the wait is over, and predictions are quick enough."""
        for_predictions = self.config.slack * self._clock.last_s * measured["prediction_rate"] * measured["prediction_latency_s"]
        wait = max(for_predictions, self._clock.rest_s(self.config.max_share))
        is_over, limit_ms = not exceeds(wait, measured[SINCE]), self.config.latency_limit_ms
        evidence = {f"{SINCE}.threshold": wait, f"{SINCE}.unusual": float(is_over)}
        if limit_ms is None or P99 not in measured:
            return is_over, evidence
        is_slow = measured[P99] > limit_ms / 1000
        evidence |= {f"{P99}.threshold": limit_ms / 1000, f"{P99}.unusual": float(is_slow)}
        if is_over and is_slow:
            evidence[PAUSED] = 1.0
        return is_over and not is_slow, evidence

    def remember(self, record: CheckRecord) -> None:
        """Keep whether it pauses."""
        self._paused = bool(record.evidence.get(PAUSED))

    def triggered(self, outcome: TriggerOutcome) -> None:
        """Wait anew from here."""
        super().triggered(outcome)
        self._clock.triggered()
        self._paused = False

    def ended(self, outcome: TriggerOutcome) -> None:
        """Learn how long it took, whether it made a model or not, and how long one sample takes."""
        super().ended(outcome)
        self._clock.ended(outcome)
        if outcome.forward_s is not None and outcome.num_trained:
            self._pass_s = outcome.forward_s / outcome.num_trained

    def warning(self) -> str | None:
        """That predictions are too slow for it to fire."""
        if not self._paused:
            return super().warning()
        what = "steps of proactive training pause" if self.context.online else "trainings pause"
        return (
            f"{what}: the p99 latency of predictions is above latency_limit_ms ({self.config.latency_limit_ms:g} ms); the samples that wait are "
            "learned from once it is not"
        )

    def own_state(self) -> dict[str, Any]:
        """Times, by name."""
        return {**self._clock.state(), "pass_s": self._pass_s, "paused": self._paused}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        self._clock.load_state(state)
        self._pass_s, self._paused = state["pass_s"], state["paused"]
