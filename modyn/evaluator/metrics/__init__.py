"""Metrics, one a file, found by the `name` in `metrics`: ours, those of installed packages, and any of torchmetrics by its class name.

A metric takes the outputs of the samples of one interval, batch by batch, and gives one number. Checking the configuration of one of ours
or of torchmetrics imports no torch.
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from pydantic import Field, field_validator

from modyn.config.base import Problem, Section
from modyn.config.policy import check_policy, load_policy
from modyn.dataset.user_code import check_function
from modyn.errors import InvalidArgumentError
from modyn.registry import Registry, load_object

if TYPE_CHECKING:
    import torch

TRANSFORMER = "evaluation_transformer_function"


class MetricConfig(Section):
    """The options of every metric; each adds its own."""

    name: str = Field(description="registered name of the metric, or a class of torchmetrics")
    label: str | None = Field(
        None, min_length=1, max_length=100, description="name of its results; none: what the metric calls itself"
    )
    evaluation_transformer_function: str | None = Field(
        None,
        description="source of `def evaluation_transformer_function(model_output)`, or package.module:name: from the model's output for a "
        "batch to what the metric sees",
    )

    @field_validator(TRANSFORMER)
    @classmethod
    def _function(cls, value: str | None) -> str | None:
        return value if value is None else check_function(value, TRANSFORMER, 1)


@dataclass(frozen=True, slots=True)
class MetricValue:
    """None: undefined for these samples, `note` gives the reason. A note beside a value names what is unusual about it."""

    value: float | None
    note: str = ""


class Metric(ABC):
    """One metric over the samples of one interval. Made anew for each interval; one batch or ten give the same value.

    A decomposable metric keeps counts; a holistic one keeps what it needs of each sample, up to a bound that its docstring states.
    """

    Config: ClassVar[type[MetricConfig]]

    def __init__(self, config: Any) -> None:
        self.config: Any = config

    @property
    def label(self) -> str:
        """The label of its results."""
        return self.label_of(self.config)

    @classmethod
    def label_of(cls, config: Any) -> str:
        """The label of results of this configuration; known without making the metric."""
        return str(config.label or config.name)

    @abstractmethod
    def update(self, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        """Add n ≥ 0 samples. outputs: (n, …), as the transformer returns them, on the model's device. labels: (n,) on the same device.

        Neither is changed. Raises InvalidArgumentError if their shapes or values are not what the metric is for.
        """

    @abstractmethod
    def value(self) -> MetricValue:
        """The value over all samples added, of which there is at least one."""

    def shape_error(self, needed: str, outputs: torch.Tensor, advice: str = "Bring") -> InvalidArgumentError:
        """The error of outputs that lack the shape that is `needed`."""
        return InvalidArgumentError(
            f"{self.label} needs {needed}; the model's output has shape {list(outputs.shape)}. {advice} it into that shape with {TRANSFORMER}"
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


class _Metrics(Registry[type[Metric]]):
    """Ours and those of installed packages, and else the class for torchmetrics if that has one of this name."""

    def choices(self) -> str:
        return f"{super().choices()}, or one of torchmetrics, for example Precision"

    def get(self, id_: str) -> type[Metric]:
        if id_ not in self and id_ in torchmetrics_names():
            return cast("type[Metric]", load_object("modyn.evaluator.metrics.torch_metric:TorchMetric"))
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
