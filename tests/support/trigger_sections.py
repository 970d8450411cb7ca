"""A `trigger` section for each kind of policy, small enough to fire some times within a few hundred samples."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import pytest

from modyn.config.base import Severity
from modyn.supervisor.triggers import TRIGGERS, check_trigger_section
from modyn.testing.checks import example_streams

_DURATION = re.compile(r'"\d+[smhdwy]"')
_THRESHOLD = {"id": "ThresholdDecisionCriterion", "threshold": 0.2}
_QUANTILE = {"id": "DynamicQuantileThresholdCriterion", "window_size": 4, "quantile": 0.25}
_WINDOWS = {"id": "AmountWindowingStrategy", "amount_ref": 20, "amount_cur": 10}
_DRIFT: dict[str, Any] = {
    "evaluation_interval_data_points": 10,
    "windowing_strategy": _WINDOWS,
    "metrics": {"mmd": {"id": "MMDDriftMetric", "decision_criterion": _THRESHOLD}},
}
_DATASET = {"dataset_id": "train", "metrics": [{"name": "Accuracy"}]}

_ALL: dict[str, dict[str, Any]] = {
    "DataAmountTrigger": {"id": "DataAmountTrigger", "num_samples": 37},
    "InitialTrigger": {"id": "InitialTrigger", "num_samples": 37},
    "TimeTrigger": {"id": "TimeTrigger", "every": "3d"},
    "DataDriftTrigger": {"id": "DataDriftTrigger", **_DRIFT},
    "DataDriftTrigger with two metrics": {
        "id": "DataDriftTrigger",
        **_DRIFT,
        "metrics": {
            "mmd": {"id": "MMDDriftMetric", "decision_criterion": _THRESHOLD},
            "ks": {"id": "KSDriftMetric", "decision_criterion": _QUANTILE},
        },
        "aggregation_strategy": {"id": "AtLeastN", "n": 1},
        "evaluation_interval_data_points": None,
        "evaluation_interval": "2d",
    },
    "DataDriftTrigger of whole seasons": {
        "id": "DataDriftTrigger",
        **_DRIFT,
        "windowing_strategy": {"id": "TimeWindowingStrategy", "limit_ref": "4d", "limit_cur": "2d", "season": "2d"},
        "evaluation_interval_data_points": 10,
    },
    "DataDriftTrigger of the same phase": {
        "id": "DataDriftTrigger",
        **_DRIFT,
        "windowing_strategy": {"id": "TimeWindowingStrategy", "limit_cur": "1d", "season": "3d", "reference": "same_phase"},
        "evaluation_interval_data_points": 10,
    },
    "AutoDrift": {
        "id": "AutoDrift",
        "evaluation_interval_data_points": 10,
        "windowing_strategy": _WINDOWS,
        "warmup_intervals": 3,
    },
    "EnsembleTrigger": {
        "id": "EnsembleTrigger",
        "subtriggers": {
            "amount": {"id": "DataAmountTrigger", "num_samples": 11},
            "time": {"id": "TimeTrigger", "every": "2d"},
            "drift": {"id": "DataDriftTrigger", **_DRIFT},
        },
    },
    "PerformanceTrigger": {
        "id": "PerformanceTrigger",
        "evaluation_interval_data_points": 10,
        "evaluation": {"dataset": _DATASET},
        "decision_criteria": {
            "accuracy": {"id": "StaticPerformanceThresholdCriterion", "metric": "Accuracy", "metric_threshold": 0.75},
            "avoidable": {"id": "StaticNumberMisclassificationCriterion", "avoidable_misclassification_threshold": 5},
        },
    },
    "StreamDetectorTrigger": {
        "id": "StreamDetectorTrigger",
        "evaluation_interval_data_points": 10,
        "evaluation": {"dataset": _DATASET},
        "detector": {"id": "HDDM_A", "drift_confidence": 0.1},
    },
    "StreamDetectorTrigger on distance": {
        "id": "StreamDetectorTrigger",
        "evaluation_interval_data_points": 10,
        "on": "distance",
        "distance": {"windowing_strategy": _WINDOWS, "metric": {"id": "KSDriftMetric"}},
        "detector": {"id": "PageHinkley", "min_instances": 3, "threshold": 0.5},
    },
    "PerformanceTrigger without labels": {
        "id": "PerformanceTrigger",
        "evaluation_interval": "2d",
        "evaluation": {"dataset": _DATASET},
        "decision_criteria": {
            "estimated": {"id": "StaticPerformanceThresholdCriterion", "metric": "EstimatedAccuracyATC", "metric_threshold": 0.7},
        },
    },
    "DataIncorporationLatencyCostTrigger": {
        "id": "DataIncorporationLatencyCostTrigger",
        "evaluation_interval_data_points": 10,
        "incorporation_delay_per_training_second": 1e9,
    },
    "DynamicScheduleTrigger": {
        "id": "DynamicScheduleTrigger",
        "evaluation_interval_data_points": 10,
        "slack": 2,
        "max_share": 0.00001,
        "latency_limit_ms": 5,
    },
    "AvoidableMisclassificationCostTrigger": {
        "id": "AvoidableMisclassificationCostTrigger",
        "evaluation_interval_data_points": 10,
        "evaluation": {"dataset": _DATASET},
        "avoidable_misclassification_latency_per_training_second": 1e9,
        "warmup_intervals": 2,
        "warmup_policy": {"id": "DataAmountTrigger", "num_samples": 15},
    },
}

SECTIONS: Final[dict[str, dict[str, Any]]] = {
    name: section
    for name, section in _ALL.items()
    if section["id"] in TRIGGERS and Severity.ERROR not in {found.severity for found in check_trigger_section(section)}
}
"""Sections by name, for all policies."""


def streams_of_each(configs: Mapping[str, Mapping[str, Any]], num_samples: int, *, all_timed: bool = False) -> list[Any]:
    """Cases of a configuration and titles of `example_streams`, for `parametrize`.

    The streams differ in their times. In the gate a configuration with a duration meets a third of them and the next one another third, a
    single one meets all; a configuration that counts samples meets a fifth, the next one another fifth. Slow tests take the rest.

    Args: all_timed: the policy decides by the times of samples also where its configuration has no duration.
    """
    titles, cases, seen = list(example_streams(num_samples)), list[Any](), {True: 0, False: 0}
    timed = {name: all_timed or bool(_DURATION.search(json.dumps(config))) for name, config in configs.items()}
    for name, is_timed in timed.items():
        parts, number = min(3, sum(timed.values())) if is_timed else 5, seen[is_timed]
        seen[is_timed] += 1
        some, rest = titles[number % parts :: parts], [title for at, title in enumerate(titles) if at % parts != number % parts]
        cases.append(pytest.param(name, some, id=name))
        if rest:
            cases.append(pytest.param(name, rest, id=f"{name}, other streams", marks=pytest.mark.slow))
    return cases
