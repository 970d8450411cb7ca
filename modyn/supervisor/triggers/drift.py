"""Fires when the distribution of new data has moved away from the distribution of earlier data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from modyn.config.base import PlacedError, Problem, load_section, sections_in
from modyn.config.policy import check_policy, load_policy
from modyn.config.trigger_parts import CRITERION, ComparedData
from modyn.evaluator.client import DriftQuestion
from modyn.records import SampleBatch
from modyn.supervisor.criteria import CRITERIA, DecisionCriterion
from modyn.supervisor.criteria.panel import CriteriaPanel
from modyn.supervisor.criteria.votes import MajorityVote, Vote
from modyn.supervisor.evidence import Evidence, value_of
from modyn.supervisor.triggers.base import CheckContext, CheckRecord, SeriesName, TriggerContext, TriggerOutcome
from modyn.supervisor.triggers.interval import CheckMeasurement, IntervalConfig, IntervalTrigger, idle_warm_up
from modyn.supervisor.triggers.measures.window_distances import ComparedWindows, WindowDistances


class DataDriftConfig(ComparedWindows, IntervalConfig):
    """Fires when new data have drifted from the data on which the newest model was trained."""

    metrics: dict[SeriesName, dict[str, Any]] = Field(
        default_factory=dict,
        description="drift metrics of the windows, by names of letters, digits, _ and -; each has an `id`, options, and a `decision_criterion`. "
        "Required, unless `on` is labels: the default is then ChiSquaredDriftMetric with a p-value below 0.001",
    )
    aggregation_strategy: Vote = Field(
        default_factory=MajorityVote, description="how the verdicts of several metrics become one verdict"
    )

    metrics_of_labels: ClassVar[Mapping[str, Any]] = {
        "chi_squared": {"id": "ChiSquaredDriftMetric", CRITERION: {"id": "PValueDecisionCriterion", "p_val": 0.001}}
    }
    """The default metrics for comparing labels. Labels of classes are not quantities. Therefore, metrics can only compare the counts of classes."""

    @model_validator(mode="before")
    @classmethod
    def _classes_are_counted(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("on") == ComparedData.LABELS and "metrics" not in data:
            return {**data, "metrics": deepcopy(dict(cls.metrics_of_labels))}
        return data

    @model_validator(mode="after")
    def _enough_metrics(self) -> Self:
        needed = getattr(self.aggregation_strategy, "n", 0)
        if not self.metrics:
            raise PlacedError("metrics", "is required, at least 1 drift metric, unless `on` is labels")
        if needed > len(self.metrics):
            raise PlacedError("aggregation_strategy.n", f"{needed} of {len(self.metrics)} metrics never fire together")
        return self


def _check_criterion(metric: Mapping[str, Any], path: str) -> list[Problem]:
    section = metric.get(CRITERION)
    if not isinstance(section, Mapping):
        return [Problem(f"{path}.{CRITERION}", f"is required: one of {CRITERIA.choices()}, by its id, with its options")]
    return check_policy(CRITERIA, section, "id", f"{path}.{CRITERION}")


def _criterion(metric: Mapping[str, Any]) -> DecisionCriterion:
    criterion, config = load_policy(CRITERIA, metric[CRITERION], "id", CRITERION)
    return criterion(config)


class DataDriftTrigger(IntervalTrigger):
    """Fires when the distance between a reference window and the newest data is unusual (Modyn, SIGMOD'25, section 5.1).

    The reference is the window that was current at the trigger of the newest model: the newest data on which this model was trained. A trigger that
    makes no model does not change the reference. While the run has no model, the reference is the window at the last trigger. The policy compares
    embeddings or predictions of the newest model, or the samples themselves or their labels, which need no model. Each metric has a criterion, which
    decides whether the distance is unusually large. A vote combines these verdicts.

    Evidence: for each metric its distance under its name, with p-value, threshold, verdict and seconds; the counts `reference_samples` and
    `current_samples` of the compared windows, and `embedded_samples`, the samples that passed the model for this check. If a window has too few
    samples for a metric, the metric is not measured and votes no. Most metrics need two samples, a domain classifier needs ten, and chi-squared
    needs samples of two classes that are not rare. All metrics vote no if the reference has fewer samples than a PCAProjection has components.

    >>> import numpy as np
    >>> from modyn.testing.decisions import decide
    >>> from modyn.testing.fake_evidence import FakeEvidence  # its distance is the distance of the mean labels
    >>> stream = SampleBatch(np.arange(60), np.arange(60), np.repeat([0, 1], [35, 25]))
    >>> metric = {"id": "MMDDriftMetric", CRITERION: {"id": "ThresholdDecisionCriterion", "threshold": 0.25}}
    >>> windows = {"id": "AmountWindowingStrategy", "amount_ref": 20, "amount_cur": 20}
    >>> options = {"evaluation_interval_data_points": 10, "windowing_strategy": windows, "metrics": {"mmd": metric}}
    >>> checks = decide(DataDriftTrigger(load_section(DataDriftConfig, options)), [stream], source=FakeEvidence(stream))
    >>> [(check.position, check.numbers.get("mmd")) for check in checks if check.fires]
    [(10, None), (50, 0.75)]
    """

    Config: ClassVar[type[DataDriftConfig]] = DataDriftConfig
    config: DataDriftConfig

    def __init__(self, config: DataDriftConfig, context: TriggerContext | None = None) -> None:
        super().__init__(config, context)
        self._panel = CriteriaPanel(
            {name: (name, _criterion(metric)) for name, metric in config.metrics.items()}, config.aggregation_strategy
        )
        metrics = {
            name: {key: value for key, value in metric.items() if key != CRITERION} for name, metric in config.metrics.items()
        }
        self._distances = WindowDistances(config, metrics, self.context.seed)
        self._has_measured = dict[str, bool]()
        """For each metric, whether the windows ever had enough samples for it."""

    @classmethod
    def problems(cls, options: Mapping[str, Any], path: str) -> list[Problem]:
        """Find mistakes in the options of the policy and the criteria; the evaluator checks the metrics themselves."""
        found = super().problems(options, path)
        for name, metric in sections_in(options.get("metrics")).items():  # The evaluator reports a value that is not a section.
            found += _check_criterion(metric, f"{path}.metrics.{name}")
        if found:
            return found
        config = load_section(cls.Config, options)
        return idle_warm_up(config, (CRITERIA.get(metric[CRITERION]["id"]) for metric in config.metrics.values()), path)

    def observe(self, samples: SampleBatch) -> None:
        """Count the samples, and store their times."""
        super().observe(samples)
        self._distances.observe(samples)

    def triggered(self, outcome: TriggerOutcome) -> None:
        """Start a new window. While there is no model, the newest data becomes the reference."""
        super().triggered(outcome)
        self._distances.triggered()
        if self.model_id is None:
            self._distances.renew_reference()

    def trained(self, outcome: TriggerOutcome) -> None:
        """Record the new model. The newest data, on which the model was trained, becomes the reference."""
        super().trained(outcome)
        self._distances.renew_reference()

    def interval_ended(self) -> None:
        """Find the reference, if the reference was missing because the stream did not have enough whole seasons."""
        self._distances.advance()

    @property
    def needs_model(self) -> bool:
        """Whether a model computes the compared values."""
        return self.config.on.needs_model

    def end_warning(self) -> str:
        """See `Trigger`. The result also names the windows for which the stream was too short, and the metrics for which windows had too few
        samples."""
        never = [name for name, has_measured in self._has_measured.items() if not has_measured]
        unmeasured = f"no check had enough samples for {', '.join(never)}, so nothing was measured by it" if never else ""
        return "; ".join(filter(None, [super().end_warning(), self._distances.end_warning(), unmeasured]))

    def drift_question(self) -> DriftQuestion | None:
        """See `IntervalTrigger.drift_question`."""
        return self._distances.question(self.model_id)

    def measure(self, context: CheckContext) -> CheckMeasurement:
        """Measure the distances, if there is a reference, and a model if the policy needs a model."""
        return CheckMeasurement(self._distances.measure(context.source, self.model_id))

    def judge(self, measured: Sequence[Evidence], context: CheckContext) -> tuple[bool, Sequence[Evidence]]:
        """Return the vote of the criteria."""
        return self._panel.judge(measured)

    def remember(self, record: CheckRecord) -> None:
        """Store the distances, for criteria that compare with earlier distances."""
        self._panel.remember(record.evidence)
        for name in self.config.metrics:
            has_measured = self._has_measured.get(name, False)
            self._has_measured[name] = has_measured or value_of(record.evidence, name) is not None

    def own_state(self) -> dict[str, Any]:
        """Return the windows, and the earlier distances that criteria need."""
        return {"windows": self._distances.state(), "distances": self._panel.state(), "has_measured": dict(self._has_measured)}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Restore the windows and the distances."""
        self._distances.load_state(state["windows"])
        self._panel.load_state(state["distances"])
        self._has_measured = dict(state["has_measured"])
