"""Any metric of torchmetrics that gives one number, by the name of its class: `name: Precision`, `config: {task: binary}`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from modyn.errors import ConfigError, InvalidArgumentError
from modyn.evaluator.metrics import Metric, MetricConfig, MetricValue

if TYPE_CHECKING:
    import torch


class TorchMetricConfig(MetricConfig):
    """Options of TorchMetric."""

    config: dict[str, Any] = Field(default_factory=dict, description="arguments of the class's constructor")


class TorchMetric(Metric):
    """Keeps what the class keeps: counts, or all outputs for curves unless `thresholds` is given. outputs and labels: as the class wants."""

    Config: ClassVar[type[MetricConfig]] = TorchMetricConfig

    def __init__(self, config: TorchMetricConfig) -> None:
        super().__init__(config)
        import torchmetrics

        try:
            self._metric = getattr(torchmetrics, config.name)(**config.config)
        except (TypeError, ValueError, ImportError) as error:
            raise ConfigError(f"the metric {config.name} of torchmetrics cannot be made with {config.config}: {error}") from error

    def update(self, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        if not len(labels):
            return
        self._metric.to(labels.device)
        try:
            self._metric.update(outputs, labels)
        except (RuntimeError, ValueError, TypeError) as error:
            raise InvalidArgumentError(
                f"the metric {self.config.name} of torchmetrics refused outputs of shape {list(outputs.shape)} and labels of shape "
                f"{list(labels.shape)}: {error}. Correct its config, or use evaluation_transformer_function"
            ) from error

    def value(self) -> MetricValue:
        found = self._metric.compute()
        if getattr(found, "numel", lambda: 0)() != 1:
            raise ConfigError(
                f"the metric {self.config.name} with {self.config.config} gives more than one number; choose an average"
            )
        number = float(found)
        return MetricValue(None, "undefined: torchmetrics gives no number") if math.isnan(number) else MetricValue(number)
