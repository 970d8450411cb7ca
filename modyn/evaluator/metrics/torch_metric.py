"""Adapter for the metrics of torchmetrics."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from pydantic import Field

from modyn.errors import ConfigError, InvalidArgumentError
from modyn.evaluator.metrics.metrics import Metric, MetricConfig, MetricValue
from modyn.models.libraries import import_library

if TYPE_CHECKING:
    import torch


class TorchMetricConfig(MetricConfig):
    """Options of TorchMetric."""

    config: dict[str, Any] = Field(default_factory=dict, description="arguments of the class's constructor")
    max_bytes: int = Field(
        2**30,
        ge=1,
        description="for classes that keep all outputs and labels: largest number of bytes of these in an evaluation, over all its intervals; "
        "more is an error",
    )


LOWER_IS_BETTER: Final = frozenset(
    [
        "CalibrationError",
        "CharErrorRate",
        "ErrorRelativeGlobalDimensionlessSynthesis",
        "ExtendedEditDistance",
        "HammingDistance",
        "HingeLoss",
        "KLDivergence",
        "LogCoshError",
        "MatchErrorRate",
        "MeanAbsoluteError",
        "MeanAbsolutePercentageError",
        "MeanSquaredError",
        "MeanSquaredLogError",
        "MinkowskiDistance",
        "NormalizedRootMeanSquaredError",
        "Perplexity",
        "RelativeAverageSpectralError",
        "RelativeSquaredError",
        "RetrievalFallOut",
        "RootMeanSquaredErrorUsingSlidingWindow",
        "SpectralAngleMapper",
        "SymmetricMeanAbsolutePercentageError",
        "TotalVariation",
        "TranslationEditRate",
        "TweedieDevianceScore",
        "WeightedMeanAbsolutePercentageError",
        "WordErrorRate",
        "WordInfoLost",
    ]
)
"""Classes of torchmetrics for which lower values are better. The list is needed because reading `higher_is_better` would import torch."""


@dataclass(slots=True)
class _Given:
    """Number of bytes of outputs and labels that the metrics of all intervals of an evaluation received."""

    num_bytes: int = 0


class TorchMetric(Metric):
    """Adapter for any metric of torchmetrics that returns one number. `name` is the name of the class: `name: Precision`, `config: {task: binary}`.

    The metric keeps the state of the class: counts, or all outputs and labels, for example for curves without `thresholds`. All intervals of an
    evaluation together may keep `max_bytes` bytes of outputs and labels (1 GiB by default). outputs and labels: as the class expects.

    >>> import torch
    >>> from modyn.evaluator.metrics.metrics import build_metric
    >>> metric = build_metric({"name": "Precision", "config": {"task": "binary"}})
    >>> metric.update(torch.tensor([0.9, 0.8, 0.1]), torch.tensor([1, 0, 0]))
    >>> metric.value().value
    0.5
    """

    Config: ClassVar[type[MetricConfig]] = TorchMetricConfig

    def __init__(self, config: TorchMetricConfig) -> None:
        """Raises: ConfigError: torchmetrics does not accept these options."""
        super().__init__(config)
        torchmetrics = import_library("torchmetrics")
        try:
            self._metric = getattr(torchmetrics, config.name)(**config.config)
        except (TypeError, ValueError, ImportError) as error:
            raise ConfigError(
                f"the metric {config.name} of torchmetrics cannot be built with {config.config}: {error}"
            ) from error
        states = [state for part in self._metric.modules() for state in getattr(part, "metric_state", {}).values()]
        self._keeps_all = any(isinstance(state, list) for state in states)
        self._given = _Given()

    @classmethod
    def lower_is_better(cls, config: TorchMetricConfig) -> bool:
        """Return whether the class is in `LOWER_IS_BETTER`."""
        return config.name in LOWER_IS_BETTER

    @classmethod
    def for_intervals(cls, config: TorchMetricConfig, count: int) -> list[Self]:
        """Make metrics that share one count of bytes."""
        metrics = super().for_intervals(config, count)
        for metric in metrics:
            metric._given = metrics[0]._given
        return metrics

    def update(self, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        """Update the metric on the device of the labels. Raises InvalidArgumentError with the reason that torchmetrics gives."""
        if not len(labels):
            return
        given = self._given.num_bytes + outputs.nbytes + labels.nbytes
        if self._keeps_all and given > self.config.max_bytes:
            raise InvalidArgumentError(
                f"the metric {self.config.name} of torchmetrics keeps all outputs and labels of all intervals, and received {given} bytes; max_bytes "
                f"is {self.config.max_bytes}: set `thresholds` in its config, raise max_bytes, or evaluate fewer intervals at once"
            )
        self._given.num_bytes = given
        self.count_not_numbers(outputs)
        self._metric.to(labels.device)
        try:
            self._metric.update(outputs, labels)
        except (RuntimeError, ValueError, TypeError) as error:
            raise InvalidArgumentError(
                f"the metric {self.config.name} of torchmetrics refused outputs of shape {list(outputs.shape)} and labels of shape "
                f"{list(labels.shape)}: {error}. Correct its config, or use evaluation_transformer_function"
            ) from error

    def value(self) -> MetricValue:
        """Return the value that the class computes; undefined if the value or a score is NaN. Raises ConfigError: the class returns more than one
        number."""
        if (undefined := self.undefined()) is not None:
            return undefined
        found = self._metric.compute()
        if getattr(found, "numel", lambda: 0)() != 1:
            raise ConfigError(
                f"the metric {self.config.name} with {self.config.config} gives more than one number; choose an average"
            )
        number = float(found)
        return MetricValue(None, "undefined: torchmetrics returned NaN") if math.isnan(number) else MetricValue(number)
