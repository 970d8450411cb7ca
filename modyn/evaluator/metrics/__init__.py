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

from modyn.config.base import Problem
from modyn.config.policy import check_policy, load_policy
from modyn.evaluator.metrics.metric import Metric, MetricConfig, MetricValue
from modyn.registry import Registry

__all__ = [
    "METRICS",
    "Metric",
    "MetricConfig",
    "MetricValue",
    "build_metric",
    "check_metric",
    "torchmetrics_names",
]


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


class _Metrics(Registry[type[Metric]]):
    """Ours and those of installed packages, and else the class for torchmetrics if that has one of this name."""

    def choices(self) -> str:
        return f"{super().choices()}, or one of torchmetrics, for example Precision"

    def get(self, id_: str) -> type[Metric]:
        if id_ not in self and id_ in torchmetrics_names():
            from modyn.evaluator.metrics.torch_metric import TorchMetric

            return TorchMetric
        return super().get(id_)


METRICS: Final[Registry[type[Metric]]] = _Metrics(
    group="modyn.metrics",
    kind="metric",
    builtin={
        "Accuracy": "modyn.evaluator.metrics.accuracy:Accuracy",
        "F1Score": "modyn.evaluator.metrics.f1_score:F1Score",
        "RocAuc": "modyn.evaluator.metrics.roc_auc:RocAuc",
    },
)


def check_metric(section: object, path: str) -> list[Problem]:
    """Every mistake of one entry of `metrics`, with paths below `path`; empty if there is none."""
    if not isinstance(section, Mapping):
        return [Problem(path, f"{section!r} is wrong: a metric is written as `name: Accuracy` and its options")]
    return check_policy(METRICS, section, "name", path)


def build_metric(section: Mapping[str, Any], path: str = "metrics") -> Metric:
    """A metric that has seen nothing yet. Raises ConfigError that lists every mistake."""
    metric, config = load_policy(METRICS, section, "name", path)
    return metric(config)
