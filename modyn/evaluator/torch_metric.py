"""Any metric of torchmetrics as one of ours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from pydantic import Field

from modyn.errors import ConfigError, InvalidArgumentError
from modyn.evaluator.metrics import Metric, MetricConfig, MetricValue

if TYPE_CHECKING:
    import torch


class TorchMetricConfig(MetricConfig):
    """Options of TorchMetric."""

    config: dict[str, Any] = Field(default_factory=dict, description="arguments of the class's constructor")
    max_bytes: int = Field(
        2**30,
        ge=1,
        description="outputs and labels that a class which keeps all of them may be given in an evaluation, over all its intervals; beyond, an error",
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
"""Classes whose low values are the good ones; reading `higher_is_better` would import torch."""


@dataclass(slots=True)
class _Given:
    """Bytes of outputs and labels that the metrics of all intervals of an evaluation were given."""

    num_bytes: int = 0


class TorchMetric(Metric):
    """Any metric of torchmetrics that gives one number, by the name of its class: `name: Precision`, `config: {task: binary}`.

    Keeps what the class keeps: counts, or, for curves unless `thresholds` is given, all outputs and labels, of which there may be `max_bytes` in
    an evaluation, over all its intervals (1 GiB by default). outputs and labels: as the class wants.
    """

    Config: ClassVar[type[MetricConfig]] = TorchMetricConfig

    def __init__(self, config: TorchMetricConfig) -> None:
        """Raises: ConfigError: torchmetrics does not take these options."""
        super().__init__(config)
        import torchmetrics

        try:
            self._metric = getattr(torchmetrics, config.name)(**config.config)
        except (TypeError, ValueError, ImportError) as error:
            raise ConfigError(f"the metric {config.name} of torchmetrics cannot be made with {config.config}: {error}") from error
        states = [state for part in self._metric.modules() for state in getattr(part, "metric_state", {}).values()]
        self._keeps_all = any(isinstance(state, list) for state in states)
        self._given = _Given()

    @classmethod
    def lower_is_better(cls, config: TorchMetricConfig) -> bool:
        """By the class."""
        return config.name in LOWER_IS_BETTER

    @classmethod
    def for_intervals(cls, config: TorchMetricConfig, count: int) -> list[Self]:
        """The metrics count together what they were given."""
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
                f"the metric {self.config.name} of torchmetrics keeps all outputs and labels of all intervals, and was given {given} bytes; "
                f"max_bytes is {self.config.max_bytes}: give `thresholds` in its config, raise max_bytes, or evaluate fewer intervals at once"
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
        """What the class computes; None where that, or a score, is NaN. Raises ConfigError if it is more than one number."""
        if (undefined := self.undefined()) is not None:
            return undefined
        found = self._metric.compute()
        if getattr(found, "numel", lambda: 0)() != 1:
            raise ConfigError(
                f"the metric {self.config.name} with {self.config.config} gives more than one number; choose an average"
            )
        number = float(found)
        return MetricValue(None, "undefined: torchmetrics gives no number") if math.isnan(number) else MetricValue(number)
