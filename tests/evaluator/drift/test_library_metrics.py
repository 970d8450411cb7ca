"""Options of the metrics of alibi-detect and evidently, and messages if the libraries are not installed.

The values are tested in environments with the libraries: `make test-extras`, libraries/.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from pydantic import ValidationError

from modyn.config.base import Severity
from modyn.errors import ConfigError
from modyn.evaluator.drift import DRIFT_METRICS, compare, missing_modules
from modyn.evaluator.trigger_section import check_metrics

ROOT = Path(__file__).parents[3]

DEFAULTS: dict[str, dict[str, Any]] = {
    "AlibiDetectMmdDriftMetric": {
        "p_val": 0.05, "num_permutations": None, "kernel": "GaussianRBF", "configure_kernel_from_x_ref": True, "threshold": None,
        "device": None,
    },
    "AlibiDetectKSDriftMetric": {"p_val": 0.05, "correction": "bonferroni", "alternative_hypothesis": "two-sided"},
    "AlibiDetectCVMDriftMetric": {"p_val": 0.05, "correction": "bonferroni"},
    "EvidentlyModelDriftMetric": {"num_pca_component": None, "bootstrap": False, "quantile_probability": 0.95},
    "EvidentlyRatioDriftMetric": {
        "num_pca_component": None, "component_stattest": "wasserstein", "component_stattest_threshold": 0.1,
    },
    "EvidentlySimpleDistanceDriftMetric": {"num_pca_component": None, "distance_metric": "euclidean", "bootstrap": False},
    "EvidentlyHellingerDistanceDriftMetric": {},
}  # fmt: skip


@pytest.mark.parametrize("name", DEFAULTS)
def test_options_are_those_of_the_pipeline_format(name: str) -> None:
    assert DRIFT_METRICS.get(name).Config().model_dump() == DEFAULTS[name]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("AlibiDetectMmdDriftMetric", {"p_val": 0.0}),
        ("AlibiDetectMmdDriftMetric", {"p_val": 1.0}),
        ("AlibiDetectMmdDriftMetric", {"num_permutations": 0}),
        ("AlibiDetectMmdDriftMetric", {"kernel": "DeepKernel"}),
        ("AlibiDetectMmdDriftMetric", {"configure_kernel_from_x_ref": 2}),
        ("AlibiDetectMmdDriftMetric", {"device": "tpu"}),
        ("AlibiDetectKSDriftMetric", {"correction": "holm"}),
        ("AlibiDetectKSDriftMetric", {"alternative_hypothesis": "two_sided"}),
        ("AlibiDetectCVMDriftMetric", {"alternative_hypothesis": "two-sided"}),
        ("EvidentlyModelDriftMetric", {"quantile_probability": 1.0}),
        ("EvidentlyModelDriftMetric", {"num_pca_component": 0}),
        ("EvidentlyRatioDriftMetric", {"component_stattest": "chisquare"}),
        ("EvidentlyRatioDriftMetric", {"component_stattest_threshold": -0.1}),
        ("EvidentlySimpleDistanceDriftMetric", {"distance_metric": "manhattan"}),
        ("EvidentlyHellingerDistanceDriftMetric", {"num_pca_component": 3}),
    ],
)
def test_options_that_a_library_would_not_take_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(options))):
        DRIFT_METRICS.get(name).Config.model_validate(options)


def test_a_threshold_is_accepted_and_named_where_it_decides() -> None:
    section = {
        "id": "AlibiDetectMmdDriftMetric",
        "threshold": 0.25,
        "decision_criterion": {"id": "DynamicQuantileThresholdCriterion"},
    }
    lacking, warning = check_metrics({"mmd": section}, "trigger.metrics")
    assert (lacking.path, lacking.severity) == ("trigger.metrics.mmd.id", Severity.UNAVAILABLE)
    assert (warning.path, warning.severity) == ("trigger.metrics.mmd.threshold", Severity.WARNING)
    assert "decision_criterion: {id: ThresholdDecisionCriterion, threshold: 0.25}" in warning.message
    assert len(check_metrics({"mmd": {**section, "threshold": None}}, "trigger.metrics")) == 1


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("AlibiDetectMmdDriftMetric", {"p_val": 0.2}, "decision_criterion: {id: PValueDecisionCriterion, p_val: 0.2}"),
        ("AlibiDetectKSDriftMetric", {"p_val": 0.2}, "decision_criterion: {id: PValueDecisionCriterion, p_val: 0.2}"),
        ("AlibiDetectCVMDriftMetric", {"p_val": 0.2}, "decision_criterion: {id: PValueDecisionCriterion, p_val: 0.2}"),
        ("EvidentlyModelDriftMetric", {"bootstrap": True, "quantile_probability": 0.5}, "DynamicQuantileThresholdCriterion"),
        ("EvidentlySimpleDistanceDriftMetric", {"bootstrap": True}, "DynamicQuantileThresholdCriterion"),
    ],
)
def test_options_by_which_only_a_library_decides_are_named(name: str, options: dict[str, Any], words: str) -> None:
    _, *warnings = check_metrics({"m": {"id": name, **DEFAULTS[name], **options}}, "trigger.metrics")
    assert [(found.path, found.severity) for found in warnings] == [
        (f"trigger.metrics.m.{option}", Severity.WARNING) for option in options
    ]
    assert all(words in found.message for found in warnings)
    assert len(check_metrics({"m": {"id": name, **DEFAULTS[name]}}, "trigger.metrics")) == 1


@pytest.mark.parametrize("name", DEFAULTS)
def test_without_the_library_the_extra_is_named(name: str) -> None:
    """The test suite of the project runs without these libraries."""
    metric = DRIFT_METRICS.get(name)
    extra = "alibi" if name.startswith("Alibi") else "evidently"
    assert missing_modules(metric).endswith(f"pip install 'modyn[{extra}]'")
    with pytest.raises(ConfigError, match=rf"{name} needs {extra}.*pip install 'modyn\[{extra}\]'"):
        compare(metric(metric.Config()), torch.ones(3, 2), torch.ones(3, 2))


@pytest.mark.parametrize("extra", ["alibi", "evidently"])
def test_the_environment_of_an_extra_holds_all_that_modyn_needs(extra: str) -> None:
    """So what is tested there is an installation that pip finds: its pins satisfy the package and the extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "tests" / f"{extra}-requirements.txt").read_text().splitlines()
    pins = dict(line.lower().replace("_", "-").split("==") for line in lines if not line.startswith("#"))
    for text in project["dependencies"] + project["optional-dependencies"][extra]:
        needed = Requirement(text)
        assert needed.specifier.contains(pins[needed.name.replace("_", "-")]), text
