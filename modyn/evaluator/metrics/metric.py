"""The base of metrics: takes the outputs of the samples of one interval, batch by batch, and gives one number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, field_validator

from modyn.config.base import Section
from modyn.dataset.user_code import check_function

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
        return str(config.label or cls.own_label(config))

    @classmethod
    def own_label(cls, config: Any) -> str:
        """The default label for this configuration."""
        return str(config.name)

    @abstractmethod
    def update(self, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        """Add n ≥ 0 samples. outputs: (n, …), as the transformer returns them, on the model's device. labels: (n,) on the same device.

        Neither is changed. Raises InvalidArgumentError if their shapes or values are not what the metric is for.
        """

    @abstractmethod
    def value(self) -> MetricValue:
        """The value over all samples added, of which there is at least one."""
