"""Metrics, one a file, found by the `name` in `metrics`: ours, those of installed packages, and any of torchmetrics by its class name.

Checking the configuration of one of ours or of torchmetrics imports no torch.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from modyn.config.base import Problem, check_section, load_section
from modyn.errors import ConfigError
from modyn.evaluator.metrics.metric import Metric, MetricConfig, MetricValue
from modyn.registry import Registry

__all__ = [
    "METRICS",
    "Metric",
    "MetricConfig",
    "MetricValue",
    "build_metric",
    "check_metric",
    "metric_class",
    "torchmetrics_names",
]

METRICS: Final[Registry[type[Metric]]] = Registry(
    group="modyn.metrics",
    kind="metric",
    builtin={
        "Accuracy": "modyn.evaluator.metrics.accuracy:Accuracy",
        "F1Score": "modyn.evaluator.metrics.f1_score:F1Score",
        "RocAuc": "modyn.evaluator.metrics.roc_auc:RocAuc",
    },
)


@cache
def torchmetrics_names() -> frozenset[str]:
    """The classes that torchmetrics exports, read from its source: importing it would import torch."""
    spec = find_spec("torchmetrics")
    if spec is None or spec.origin is None:
        return frozenset()
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
        ):
            return frozenset(name for name in ast.literal_eval(node.value) if name[:1].isupper())
    return frozenset()


def metric_class(name: str) -> type[Metric]:
    """The metric registered as `name`, or else the class for torchmetrics if that has one of this name.

    Raises ConfigError that lists what there is.
    """
    if name in METRICS:
        return METRICS.get(name)
    if name in torchmetrics_names():
        from modyn.evaluator.metrics.torch_metric import TorchMetric

        return TorchMetric
    try:
        return METRICS.get(name)
    except ConfigError as error:
        raise ConfigError(f"{error.message}. Any metric of torchmetrics can be named too, for example 'Precision'") from error


def check_metric(section: object, path: str) -> list[Problem]:
    """Every mistake of one entry of `metrics`, with paths below `path`; empty if there is none."""
    if not isinstance(section, Mapping):
        return [Problem(path, f"{section!r} is wrong: a metric is written as `name: Accuracy` and its options")]
    name = section.get("name")
    if not isinstance(name, str):
        return [
            Problem(f"{path}.name", f"is required: the name of a metric, one of {', '.join(METRICS)}, or one of torchmetrics")
        ]
    try:
        metric = metric_class(name)
    except ConfigError as error:
        return [Problem(f"{path}.name", error.message)]
    return check_section(metric.Config, section, path)


def build_metric(section: Mapping[str, Any], path: str = "metrics") -> Metric:
    """A metric that has seen nothing yet. Raises ConfigError that lists every mistake."""
    if found := check_metric(section, path):
        raise ConfigError("\n".join(str(problem) for problem in found))
    metric = metric_class(section["name"])
    return metric(load_section(metric.Config, section, path))
