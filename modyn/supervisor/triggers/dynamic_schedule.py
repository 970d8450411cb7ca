"""Fires when there is time for it: by the seconds that the last steps took, and the rate and latency of predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from modyn.records import SampleBatch
from modyn.supervisor.triggers.base import CheckContext, CheckRecord, TriggerContext, TriggerOutcome
from modyn.supervisor.triggers.interval import IntervalConfig, IntervalTrigger

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
    that come meanwhile wait, and the next training takes them all. A training that has begun goes on. Where no server reports, there are no
    predictions to wait for.

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
        self._now: int | None = None
        """Stream time."""
        self._fired_at = 0
        """Stream time of the last trigger."""
        self._took_s = 0.0
        """The last training, also if it was of the other kind."""
        self._ended_at: float | None = None
        """When it ended, in seconds since 1970."""
        self._last_s = 0.0
        """T."""
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
        if len(samples):
            newest = int(samples.timestamps.max())
            self._now = newest if self._now is None else max(self._now, newest)

    def measure(self, context: CheckContext) -> Mapping[str, float]:
        """What there is to weigh, once there are a model and samples that wait."""
        if not self._has_begun or not context.num_pending:
            return {}
        load = context.source.load()
        if load is None:
            passed = (self._now or 0) - self._fired_at
            rate = context.num_pending / max(1, passed)
            # Less than 0 while the last training would still be made.
            measured = {SINCE: passed - self._took_s, "prediction_rate": rate, "prediction_latency_s": self._pass_s}
        else:
            since = load.at - (load.at if self._ended_at is None else self._ended_at)
            measured = {SINCE: max(0.0, since), "prediction_rate": load.rate, "prediction_latency_s": load.mean_s}
            if load.num_servers:
                measured[P99] = load.p99_s
        return {**measured, "last_training_s": self._last_s}

    def judge(self, measured: Mapping[str, float], context: CheckContext) -> tuple[bool, Mapping[str, float]]:
        """Whether the wait is over, and predictions are quick enough."""
        wait = wait_s(self.config, self._last_s, measured["prediction_rate"], measured["prediction_latency_s"])
        is_over, limit_ms = measured[SINCE] >= wait, self.config.latency_limit_ms
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
        self._fired_at, self._took_s, self._paused = self._now or 0, 0.0, False

    def ended(self, outcome: TriggerOutcome) -> None:
        """Learn how long it took, whether it made a model or not, and how long one sample takes."""
        super().ended(outcome)
        self._took_s = float(outcome.seconds.get("total", outcome.seconds.get("train", 0.0)))
        if outcome.finished_at is not None:
            self._ended_at = outcome.finished_at
        if outcome.forward_s is not None and outcome.num_trained:
            self._pass_s = outcome.forward_s / outcome.num_trained
        if outcome.online is self.context.online and "train" in outcome.seconds:
            self._last_s = self._took_s

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
        return {name: getattr(self, f"_{name}") for name in _STATE}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        for name in _STATE:
            setattr(self, f"_{name}", state[name])


_STATE = ("now", "fired_at", "took_s", "ended_at", "last_s", "pass_s", "paused")


def wait_s(config: DynamicScheduleConfig, last_s: float, rate: float, latency_s: float) -> float:
    """Seconds between the end of a training and the begin of the next one.

    Args: last_s: that the last one took. rate: predictions a second. latency_s: of one.

    >>> options = {"evaluation_interval_data_points": 10}
    >>> wait_s(DynamicScheduleConfig(**options, slack=2, max_share=1), 3.0, 100, 0.004)
    2.4
    >>> wait_s(DynamicScheduleConfig(**options, max_share=0.25), 3.0, 100, 0.004)
    9.0
    """
    return max(config.slack * last_s * rate * latency_s, last_s * (1 / config.max_share - 1))
