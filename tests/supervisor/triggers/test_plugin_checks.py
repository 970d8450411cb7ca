"""A trigger of another package, with windows, criteria and a detector in places of its own, gets the checks of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import pytest
from pydantic import Field

from modyn.config.base import Section
from modyn.evaluator.trigger_section import check_trigger
from modyn.records import SampleBatch
from modyn.registry import Plugin, Registry
from modyn.storage.client import DatasetInfo
from modyn.supervisor.criteria import CRITERIA, PERFORMANCE_CRITERIA
from modyn.supervisor.criteria.threshold import ThresholdDecisionCriterion
from modyn.supervisor.detectors import DETECTORS
from modyn.supervisor.detectors.adwin import ADWIN
from modyn.supervisor.pipeline_checks.validation import check_batch_size, check_windows
from modyn.supervisor.simulation.dataset_evidence import NO_DATA, NO_SECONDS
from modyn.supervisor.simulation.policy_checks import missing_input
from modyn.supervisor.simulation.stream import SimulationOptions
from modyn.supervisor.triggers import TRIGGERS, Trigger, with_defaults
from modyn.supervisor.triggers.measures.window_distances import ComparedWindows
from tests.supervisor.triggers.test_drift import seasons


class BoundConfig(Section):
    """An option by another name than ours."""

    most: float = 7.0

    @property
    def threshold(self) -> float:
        return self.most


class Bound(ThresholdDecisionCriterion):
    """Judges distances and scores."""

    Config: ClassVar[type[Section]] = BoundConfig
    constant = "most"


class SharesOnly(ADWIN):
    """A detector that needs distances from 0 to 1."""

    takes = "shares"


class OwnWindows(ComparedWindows):
    """Windows, compared by several metrics or by one."""

    metrics: dict[str, dict[str, Any]] = Field(default_factory=dict)
    metric: dict[str, Any] = Field(default_factory=lambda: {"id": "KSDriftMetric"})


class OwnConfig(Section):
    """Windows in a place of their own, and policies within."""

    inner: OwnWindows = Field(default_factory=OwnWindows)
    detector: dict[str, Any] | None = None
    first: dict[str, Any] | None = None


class Own(Trigger):
    """Fires never."""

    Config: ClassVar[type[Section]] = OwnConfig
    weighs_seconds = True

    @classmethod
    def samples_per_trigger(cls, config: OwnConfig) -> int:
        return 30

    def next_check(self, batch: SampleBatch, start: int) -> int | None:
        return None

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        return


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    of_package: tuple[tuple[Registry[Any], type], ...] = (
        (TRIGGERS, Own), (CRITERIA, Bound), (PERFORMANCE_CRITERIA, Bound), (DETECTORS, SharesOnly)
    )  # fmt: skip
    for registry, kind in of_package:
        plugin = Plugin(registry.group, kind.__name__, f"{__name__}:{kind.__name__}", "tests")
        monkeypatch.setitem(registry.plugins, kind.__name__, plugin)


def checked(**options: Any) -> list[str]:
    """Return the problems that the evaluator finds, with paths below `trigger`."""
    return [
        str(problem).removeprefix("trigger.") for problem in check_trigger({"trigger": with_defaults({"id": "Own", **options})})
    ]


KS = {"id": "KSDriftMetric"}


@pytest.mark.parametrize(
    ("options", "path", "message"),
    [
        ({"inner": {"metric": {"id": "KSDriftMetrik"}}}, "inner.metric.id", "did you mean 'KSDriftMetric'?"),
        ({"inner": {"metrics": {"a": {**KS, "decision_criterion": {"id": "Bound"}}}}},
         "inner.metrics.a.decision_criterion.most", "so 7 never fires"),
        ({"inner": {"projection": {"id": "PCAProjection", "num_components": 2000}}},
         "inner.windowing_strategy.amount_ref", "1000 samples are never enough for projection"),
        ({"inner": {"metric": {"id": "MMDDriftMetric"}}, "detector": {"id": "SharesOnly"}},
         "inner.metric.id", "SharesOnly takes distances from 0 to 1"),
        ({"first": {"id": "AutoDrift", "projection": {"id": "PCAProjection", "num_components": 600}}},
         "first.windowing_strategy.amount_ref", "500 samples are never enough for projection"),
    ],
)  # fmt: skip
def test_the_evaluator_checks_what_it_compares(options: dict[str, Any], path: str, message: str) -> None:
    assert checked() == []
    (found,) = checked(**options)
    assert found.startswith(f"{path}: ")
    assert message in found


def test_a_score_is_judged_by_an_option_of_another_name() -> None:
    dataset = {
        "dataset_id": "d",
        "record_layout": {"dtype": "uint8", "shape": [4]},
        "batch_size": 8,
        "metrics": [{"name": "Accuracy"}],
    }
    criteria = {"low": {"id": "Bound", "metric": "Accuracy"}}
    section = with_defaults({"id": "Other", "evaluation": {"dataset": dataset}, "decision_criteria": criteria})
    (found,) = check_trigger({"trigger": section})
    assert found.path == "trigger.decision_criteria.low.most"


def test_windows_that_the_dataset_cannot_fill_are_found() -> None:
    section = {"id": "Own", "inner": {"windowing_strategy": seasons(limit_cur="3d", season="1w", reference="same_phase")}}
    dataset = cast(
        "DatasetInfo", type("Info", (), {"min_timestamp": 0, "max_timestamp": 86_400, "name": "d", "float_labels": False})
    )
    assert [problem.path for problem in check_windows({"trigger": section}, dataset)] == [
        "trigger.inner.windowing_strategy.season"
    ]


def test_a_simulation_says_what_it_lacks() -> None:
    section = {"id": "Own", "inner": {"on": "payload"}}
    assert missing_input(section, SimulationOptions(dataset="d")) == f"{NO_SECONDS}; {NO_DATA}"
    assert missing_input(section, SimulationOptions(run_id="r-0001")) == ""


def test_trigger_sets_of_a_known_size_are_compared_with_a_batch() -> None:
    own = {"name": "Own", "tail_triggers": 0, "downsampling_config": {"strategy": "Loss", "ratio": 10, "sample_then_batch": True}}
    pipeline = {"training": {"batch_size": 8}, "trigger": {"id": "Own"}, "selection_strategy": own}
    (found,) = check_batch_size(pipeline)
    assert "the trigger policy keeps trigger sets at 30 samples, of which 3 are left by selection_strategy" in found.message
