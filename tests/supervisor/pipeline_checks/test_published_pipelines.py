"""Files that tools of the published system have written out are accepted as they are."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from modyn.cli.pipelines import check_here
from modyn.config.base import Problem, Severity
from modyn.config.pipeline import load_pipeline
from modyn.config.yaml_source import load_yaml
from modyn.evaluator.config import check_conditions, check_evaluation
from modyn.evaluator.trigger_section import check_trigger
from modyn.model_storage.section import validate_section
from modyn.selector.selection import validate_selection_section
from modyn.supervisor.pipeline_checks.validation import check_pipeline
from modyn.supervisor.simulation.policy_file import load_policies
from modyn.supervisor.triggers import build_trigger
from modyn.trainer_server.check import check
from tests.support.older_shapes import BY_HAND, OLDER, evaluated, todays
from tests.support.published_shapes import ALIBI, MMD, PARSER, QUANTILE, SHAPES, STATIC, TRIGGERS, drift, pipeline


def check_training(sections: Mapping[str, Any]) -> list[Problem]:
    """Return the problems that the trainer finds; the check does not use the connection."""
    return check(sections, None)  # type: ignore[arg-type]


OWNERS = (check_evaluation, check_conditions, check_trigger, validate_section, validate_selection_section, check_training)


def found_in(sections: Mapping[str, Any]) -> dict[str, list[str]]:
    """Paths of problems, by severity."""
    problems = check_pipeline(yaml.safe_dump(dict(sections)), "p.yaml", OWNERS)
    return {
        kind: sorted(f"{p.path}: {p.message}" if kind == Severity.ERROR else p.path for p in problems if p.severity is kind)
        for kind in Severity
    }


@pytest.mark.parametrize("name", SHAPES)
def test_a_file_with_every_field_written_out_is_accepted(name: str) -> None:
    found = found_in(SHAPES[name])
    assert found[Severity.ERROR] == []
    assert "selection_strategy.processor_type" in found[Severity.WARNING]
    if name.startswith("trigger"):
        loaded = load_pipeline(yaml.safe_dump(SHAPES[name]), "p.yaml")
        assert loaded.section("data")["label_transformer_function"] is None
        build_trigger(loaded.trigger)


@pytest.mark.parametrize("name", BY_HAND)
def test_a_file_by_hand_is_accepted(name: str) -> None:
    assert found_in(BY_HAND[name])[Severity.ERROR] == []


def test_a_tokenizer_of_that_system_is_refused_with_the_spelling_of_todays() -> None:
    data = {"dataset_id": "stubbed", "bytes_parser_function": PARSER, "tokenizer": "SomeTokenizerTransform"}
    (message,) = found_in(todays(data=data))[Severity.ERROR]
    assert "write 'package.module:SomeTokenizerTransform'" in message


@pytest.mark.parametrize("name", OLDER)
def test_a_file_in_the_older_format_is_accepted(name: str) -> None:
    found = found_in(OLDER[name])
    assert found[Severity.ERROR] == []
    assert {"training.selection_strategy", "training.initial_pass"} <= set(found[Severity.WARNING])


@pytest.mark.parametrize("sections", [OLDER["clicks"], SHAPES["trigger: ensemble"]], ids=["older", "written out"])
def test_it_is_checked_without_services_too(sections: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(sections))
    found = check_here(load_yaml(path.read_text(), str(path)))
    assert [problem for problem in found if problem.severity is Severity.ERROR] == []


@pytest.mark.parametrize(
    ("name", "package", "path"),
    [("clicks", "apex", "training.optimizers.0.algorithm"), ("throughput of images", "torchvision", "data")],
)
def test_a_package_that_this_machine_lacks_is_not_a_mistake_in_the_file(name: str, package: str, path: str) -> None:
    assert (path in found_in(OLDER[name])[Severity.UNAVAILABLE]) == (find_spec(package) is None)


def test_todays_format_needs_handlers() -> None:
    assert any("handlers: is required" in message for message in found_in(todays(evaluation=evaluated()))[Severity.ERROR])


def test_a_warning_names_each_key_that_means_nothing() -> None:
    found = found_in(SHAPES["trigger: ensemble"])
    assert [path for path in found[Severity.WARNING] if path.endswith(("needs_calibration", "x_ref_preprocessed"))] == [
        "trigger.subtriggers.drift-0.05.metrics.mmd-0.05.decision_criterion.needs_calibration",
        "trigger.subtriggers.drift-0.05.metrics.mmd-0.05.x_ref_preprocessed",
        "trigger.subtriggers.perf-0.8.decision_criteria.static-0.8.needs_calibration",
    ]


def test_a_key_that_means_nothing_is_refused_where_the_published_system_has_none() -> None:
    sections = pipeline(trigger={"id": "DataAmountTrigger", "num_samples": 500, "processor_type": None})
    (message,) = found_in(sections)[Severity.ERROR]
    assert message.startswith("trigger.processor_type: there is no such key")


def test_policies_with_these_spellings_are_simulated() -> None:
    file = load_policies({name: section for name, section in TRIGGERS.items() if name.startswith("drift")})
    (metric,) = file.sections["drift by quantile"]["metrics"].values()
    assert "needs_calibration" not in metric["decision_criterion"]


def test_a_grid_within_a_name_with_a_dot_is_expanded() -> None:
    section = drift({"mmd-0.05": {**MMD, "decision_criterion": {**STATIC, "threshold": [0.05, 0.1]}}})
    assert len(load_policies({"mmd": section}).sections) == 2


def test_a_name_that_ends_with_a_dot_is_refused() -> None:
    sections = pipeline(trigger={**TRIGGERS["ensemble"], "subtriggers": {"a.": {"id": "DataAmountTrigger", "num_samples": 5}}})
    assert any("a." in message for message in found_in(sections)[Severity.ERROR])


@pytest.mark.parametrize(
    "metric",
    [
        {"id": "AlibiDetectKSDriftMetric", **ALIBI, "correction": "bonferroni", "alternative_hypothesis": "two-sided"},
        {"id": "AlibiDetectCVMDriftMetric", **ALIBI, "correction": "bonferroni"},
        {"id": "EvidentlyModelDriftMetric", "num_pca_component": None, "bootstrap": False, "quantile_probability": 0.95, "threshold": 0.55},
        {"id": "EvidentlyRatioDriftMetric", "num_pca_component": None, "component_stattest": "wasserstein", "component_stattest_threshold": 0.1,
         "threshold": 0.2},
        {"id": "EvidentlySimpleDistanceDriftMetric", "num_pca_component": None, "distance_metric": "euclidean", "bootstrap": False,
         "quantile_probability": 0.95, "threshold": 0.2},
        {"id": "EvidentlyHellingerDistanceDriftMetric"},
    ],
    ids=lambda metric: metric["id"],
)  # fmt: skip
def test_drift_metrics_of_other_packages_are_accepted(metric: dict[str, Any]) -> None:
    found = found_in(pipeline(trigger=drift({f"{metric['id']}-0.05": {**metric, "decision_criterion": QUANTILE}})))
    assert found[Severity.ERROR] == []
