"""Fires when the distribution of new data has moved away from that of the data before."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from modyn.config.base import PlacedError, Problem, load_section
from modyn.config.policy import check_policy, load_policy
from modyn.evaluator.client import ComparedData
from modyn.records import SampleBatch
from modyn.supervisor.criteria import CRITERIA, DecisionCriterion, Measurement
from modyn.supervisor.criteria.panel import CriteriaPanel
from modyn.supervisor.criteria.votes import MajorityVote, Vote
from modyn.supervisor.triggers.base import CheckContext, CheckRecord, OwnSeriesName, TriggerContext, TriggerOutcome
from modyn.supervisor.triggers.interval import IntervalConfig, IntervalTrigger, idle_warm_up
from modyn.supervisor.triggers.window_distances import ComparedWindows, WindowDistances

CRITERION = "decision_criterion"


class DataDriftConfig(ComparedWindows, IntervalConfig):
    """Fires when new data have drifted from those that the newest model was trained on."""

    metrics: dict[OwnSeriesName, dict[str, Any]] = Field(
        default_factory=dict,
        description="how far apart the windows are: a drift metric by its `id` each, with its `decision_criterion`; "
        "names have letters, digits, _ and - alone. Required, unless `on` is labels: ChiSquaredDriftMetric there, with a p-value below 0.001",
    )
    aggregation_strategy: Vote = Field(default_factory=MajorityVote, description="how the verdicts of several metrics become one")

    metrics_of_labels: ClassVar[Mapping[str, Any]] = {
        "chi_squared": {"id": "ChiSquaredDriftMetric", CRITERION: {"id": "PValueDecisionCriterion", "p_val": 0.001}}
    }
    """Where labels are compared and none are given: classes are no numbers, so only counts of them can be compared."""

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


def _check_criterion(metric: object, path: str) -> list[Problem]:
    if not isinstance(metric, Mapping):
        return []  # said of the metric itself
    section = metric.get(CRITERION)
    if not isinstance(section, Mapping):
        return [Problem(f"{path}.{CRITERION}", f"is required: one of {CRITERIA.choices()}, by its id, with its options")]
    return check_policy(CRITERIA, section, "id", f"{path}.{CRITERION}")


def _criterion(metric: Mapping[str, Any]) -> DecisionCriterion:
    criterion, config = load_policy(CRITERIA, metric[CRITERION], "id", CRITERION)
    return criterion(config)


class DataDriftTrigger(IntervalTrigger):
    """Fires when the distance between a reference window and the newest data is unusual (Modyn, SIGMOD'25, section 5.1).

    The reference is the current window at the trigger of the newest model: the newest data that it was trained on. A trigger that trains
    nothing leaves it as it is; as long as the run has no model, it is that of the last trigger. What is compared are the embeddings by the
    newest model, its predictions, or, without a model, the samples themselves or their labels. Each metric has a criterion of its own,
    which judges a large distance; their verdicts are aggregated by vote.

    Evidence: for each metric its distance under its name, `name.p_value`, `name.threshold`, `name.unusual`, `name.seconds`; of the windows
    `reference_samples` and `current_samples` that were compared, and `embedded_samples`, those that the model was given for this check.
    A metric that needs more samples than a window has (two, of a domain classifier ten, of chi-squared those of two classes that are not rare) is
    not measured, and votes no; so do all of them where a PCAProjection has fewer samples of the reference than components.
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
        """By metric that windows were compared by: whether they ever had enough samples for it."""

    @classmethod
    def problems(cls, options: Mapping[str, Any], path: str) -> list[Problem]:
        """Those of the criteria too; the evaluator checks the metrics themselves."""
        metrics = options.get("metrics")
        found = super().problems(options, path)
        for name, metric in metrics.items() if isinstance(metrics, Mapping) else ():
            found += _check_criterion(metric, f"{path}.metrics.{name}")
        if found:
            return found
        config = load_section(cls.Config, options)
        return idle_warm_up(config, (CRITERIA.get(metric[CRITERION]["id"]) for metric in config.metrics.values()), path)

    def observe(self, samples: SampleBatch) -> None:
        """Count them, and their time."""
        super().observe(samples)
        self._distances.observe(samples)

    def triggered(self, outcome: TriggerOutcome) -> None:
        """Begin a new window; make the newest data the reference, as long as there is no model."""
        super().triggered(outcome)
        self._distances.triggered()
        if self.model_id is None:
            self._distances.renew_reference()

    def trained(self, outcome: TriggerOutcome) -> None:
        """Go on with the new model, and make the newest data, which it was trained on, the reference."""
        super().trained(outcome)
        self._distances.renew_reference()

    def interval_ended(self) -> None:
        """Look for whole seasons, where the reference lacks them."""
        self._distances.advance()

    @property
    def needs_model(self) -> bool:
        """By what it compares."""
        return self.config.on.needs_model

    def lacking(self) -> str:
        """The windows that the stream was too short for, and the metrics that windows had too few samples for, too."""
        never = [name for name, has_measured in self._has_measured.items() if not has_measured]
        of_metrics = f"no check had enough samples for {', '.join(never)}, so nothing was measured by it" if never else ""
        return "; ".join(filter(None, [super().lacking(), self._distances.lacking(), of_metrics]))

    def measure(self, context: CheckContext) -> Mapping[str, float]:
        """The distances, once there are a reference and, where one is needed, a model."""
        return self._distances.measure(context.source, self.model_id)

    def judge(self, measured: Mapping[str, float], context: CheckContext) -> tuple[bool, Mapping[str, float]]:
        """The vote of the criteria."""
        return self._panel.judge(
            {
                name: Measurement(measured[name], measured.get(f"{name}.p_value"))
                for name in self.config.metrics
                if name in measured
            }
        )

    def remember(self, record: CheckRecord) -> None:
        """Take the distances, for criteria that compare with earlier ones."""
        self._panel.remember(record.evidence)
        self._has_measured |= {
            name: self._has_measured.get(name, False) or name in record.evidence for name in self.config.metrics
        }

    def own_state(self) -> dict[str, Any]:
        """The windows, and the distances that criteria look back at."""
        return {"windows": self._distances.state(), "distances": self._panel.state(), "has_measured": dict(self._has_measured)}

    def load_own_state(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        self._distances.load_state(state["windows"], self.last_trigger)
        self._panel.load_state(state["distances"])
        self._has_measured = dict(state.get("has_measured", {}))
