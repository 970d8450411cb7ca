"""Mistakes that only the evaluator finds are reported before a simulation starts, where they stand in the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import save_file

from modyn.config.base import Problem
from modyn.config.yaml_source import load_yaml
from modyn.errors import ConfigError, InvalidArgumentError
from modyn.evaluator.trigger_section import check_trigger
from modyn.model_storage.client import ModelHeader
from modyn.records import RunId
from modyn.supervisor.client import Run, RunMode, RunState
from modyn.supervisor.simulation.policy_file import PolicyFile, parse_policies
from modyn.supervisor.simulation.run_simulation import SimulationClients, SimulationOptions, check_policies
from modyn.supervisor.triggers.measures.training_seconds import TrainingSeconds
from modyn.testing.fake_evaluator import FakeEvaluator
from modyn.testing.fakes import FakeModelStorage

WRONG = """policies:
  fine: {id: DataAmountTrigger, num_samples: [5, 6]}
  drift:
    id: DataDriftTrigger
    evaluation_interval_data_points: [10, 20]
    projection: {id: PCAA}
    metrics:
      mmd: {id: MMDDriftMetrik, decision_criterion: {id: ThresholdDecisionCriterion, threshold: 0.1}}
      p: {id: MMDDriftMetric, decision_criterion: {id: PValueDecisionCriterion}}
      w: {id: MMDDriftMetric, bandwidth: [1, 2], decision_criterion: {id: ThresholdDecisionCriterion, threshold: 0.1}}
  nested:
    id: EnsembleTrigger
    subtriggers:
      scores:
        id: PerformanceTrigger
        evaluation_interval_data_points: 10
        evaluation: {dataset: {dataset_id: other, metrics: [{name: Acuracy}]}}
        decision_criteria: {a: {id: StaticPerformanceThresholdCriterion, metric: Accuracy, metric_threshold: 0.7}}
"""


class Evaluator(FakeEvaluator):
    """Checks as the service does."""

    def validate(self, pipeline: Mapping[str, Any]) -> list[Problem]:
        return check_trigger(pipeline)


class Clients:
    evaluator = Evaluator()

    def __init__(self, **sections: object) -> None:
        self._pipeline = {"data": {"dataset_id": "train"}, **sections}
        self.model_storage = FakeModelStorage()

    @property
    def supervisor(self) -> Clients:
        return self

    def run(self, run_id: str) -> Run:
        return Run("r-0001", "r", RunMode.EXPERIMENT, RunState.FINISHED, 0.0, pipeline=self._pipeline)  # type: ignore[arg-type]


CLIENTS = cast("SimulationClients", Clients())


@pytest.fixture
def model_id(tmp_path: Path) -> int:
    """A model that was imported."""
    weights = tmp_path / "weights"
    save_file({"bias": np.zeros(1)}, weights)
    return CLIENTS.model_storage.put(ModelHeader(RunId(""), 0, "MLP"), weights).model_id


def parsed(text: str) -> PolicyFile:
    return parse_policies(load_yaml(text, "p.yaml"))


def test_mistakes_that_the_evaluator_finds_have_line_path_and_nearest_name() -> None:
    parsed(WRONG)
    with pytest.raises(ConfigError) as raised:
        check_policies(CLIENTS, parsed(WRONG), SimulationOptions(run_id="r-0001"))
    lines = raised.value.message.splitlines()
    evaluated = "policies.nested.subtriggers.scores.evaluation.dataset"
    found = {tuple(line.split(": ")[:2]) for line in lines}
    assert {
        ("p.yaml:6", "policies.drift.projection.id"),
        ("p.yaml:8", "policies.drift.metrics.mmd.id"),
        ("p.yaml:9", "policies.drift.metrics.p.decision_criterion.id"),
        ("p.yaml:10", "policies.drift.metrics.w.bandwidth"),
        ("p.yaml:17", f"{evaluated}.metrics.0.name"),
        ("p.yaml:17", f"{evaluated}.dataset_id"),
    } <= found
    assert any("did you mean 'MMDDriftMetric'?" in line for line in lines)
    assert any("set policies.drift.metrics.p.num_permutations" in line for line in lines)
    assert any(line.startswith("p.yaml:10: ") and line.endswith("write them as {grid: [...]}") for line in lines)
    assert len(lines) == len(set(lines))


def test_the_section_preprocessing_of_the_run_decodes_what_policies_evaluate_on() -> None:
    text = """policies:
  scores:
    id: PerformanceTrigger
    evaluation_interval_data_points: 10
    evaluation: {dataset: {dataset_id: train, batch_size: 4, metrics: [{name: Accuracy}]}}
    decision_criteria: {a: {id: StaticPerformanceThresholdCriterion, metric: Accuracy, metric_threshold: 0.7}}
"""
    decoded = cast("SimulationClients", Clients(preprocessing={"format": "csv", "names": ["x"], "columns": {"x": "number"}}))
    check_policies(decoded, parsed(text), SimulationOptions(run_id="r-0001"))
    with pytest.raises(ConfigError, match=r"p.yaml:5: policies.scores.evaluation.dataset.*bytes_parser_function"):
        check_policies(CLIENTS, parsed(text), SimulationOptions(run_id="r-0001"))


def test_default_windows_that_are_never_enough_are_refused_where_the_policy_stands() -> None:
    text = "policies:\n  fine: {id: AutoDrift}\n  few: {id: AutoDrift, projection: {id: PCAProjection, num_components: 600}}\n"
    with pytest.raises(ConfigError) as raised:
        check_policies(CLIENTS, parsed(text), SimulationOptions(run_id="r-0001"))
    assert raised.value.message.startswith("p.yaml:3: policies.few.windowing_strategy.amount_ref: 500 samples are never enough")


def test_what_policies_on_a_dataset_lack_is_said_before_they_start(model_id: int) -> None:
    drift = "id: DataDriftTrigger, evaluation_interval_data_points: 10, metrics: {m: {id: KSDriftMetric, decision_criterion: "
    drift += "{id: ThresholdDecisionCriterion, threshold: 0.1}}}"
    distance = (
        "id: StreamDetectorTrigger, evaluation_interval_data_points: 10, detector: {id: ADWIN}, on: distance, distance: {metric: "
    )
    distance += "{id: KSDriftMetric}"
    text = f"""policies:
  labels: {{{drift}, on: labels}}
  payload: {{{drift}, on: payload}}
  nested: {{id: EnsembleTrigger, subtriggers: {{a: {{{drift}, on: payload}}, b: {{id: DataAmountTrigger, num_samples: 5}}}}}}
  predictions: {{{drift}, on: predictions}}
  embeddings: {{{distance}}}}}
  distance: {{{distance}, on: labels}}}}
"""
    parsed(text)
    for data, expected in ((None, [3, 4, 5, 6]), ({"record_layout": {"dtype": "int8"}}, [5, 6])):
        with pytest.raises(ConfigError) as raised:
            check_policies(CLIENTS, parsed(text), SimulationOptions(dataset="train", data=data))
        assert [line.split(": ")[0] for line in raised.value.message.splitlines()] == [f"p.yaml:{line}" for line in expected]
    check_policies(CLIENTS, parsed(text), SimulationOptions(dataset="train", model_id=model_id))


def test_policies_that_look_at_data_are_refused_without_a_run_and_named() -> None:
    with pytest.raises(ConfigError) as raised:
        check_policies(CLIENTS, parsed(WRONG), SimulationOptions(dataset="train"))
    assert [line.split(": ")[1] for line in raised.value.message.splitlines()] == ["policies.drift", "policies.nested"]
    assert "--run RUN" in raised.value.message


def test_costs_without_seconds_of_a_training_are_refused_before_anything_streams(model_id: int) -> None:
    latency = (
        "id: DataIncorporationLatencyCostTrigger, evaluation_interval_data_points: 5, incorporation_delay_per_training_second: 1"
    )
    warm_up = "warmup_intervals: 1, warmup_policy: {id: DataAmountTrigger, num_samples: 5}"
    dataset = (
        "evaluation: {dataset: {dataset_id: train, record_layout: {dtype: int8}, batch_size: 4, metrics: [{name: Accuracy}]}}"
    )
    errors = "id: AvoidableMisclassificationCostTrigger, evaluation_interval_data_points: 5"
    errors += f", avoidable_misclassification_latency_per_training_second: 1, {warm_up}, {dataset}"
    text = f"""policies:
  latency: {{{latency}}}
  nested: {{id: EnsembleTrigger, subtriggers: {{a: {{id: DataAmountTrigger, num_samples: 5}}, b: {{{latency}}}}}}}
  errors: {{{errors}}}
"""
    parsed(text)
    on_dataset = SimulationOptions(dataset="train")
    for options in (on_dataset, replace(on_dataset, model_id=model_id)):
        with pytest.raises(ConfigError) as raised:
            check_policies(CLIENTS, parsed(text), options)
        lines = raised.value.message.splitlines()
        assert [line.split(": ")[0] for line in lines] == ["p.yaml:2", "p.yaml:3", "p.yaml:4"]
        for line in lines:
            assert all(option in line for option in ("--seconds-per-trigger", "--seconds-per-sample", "--run RUN"))
        assert ("--model ID" in lines[2]) == (options.model_id is None)
    check_policies(CLIENTS, parsed(text), replace(on_dataset, model_id=model_id, seconds=TrainingSeconds(per_trigger=2.0)))
    check_policies(CLIENTS, parsed(text), SimulationOptions(run_id="r-0001"))


def test_contradicting_options_come_first_and_a_file_without_mistakes_passes() -> None:
    with pytest.raises(InvalidArgumentError):
        check_policies(CLIENTS, parsed(WRONG), SimulationOptions())
    fine = "\n".join(WRONG.splitlines()[:2])
    check_policies(CLIENTS, parsed(fine), SimulationOptions(dataset="train"))
