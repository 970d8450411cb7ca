"""Accuracy: the share of samples whose label is among the `topn` classes with the highest scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from modyn.evaluator.metrics import Metric, MetricConfig, MetricValue

if TYPE_CHECKING:
    import torch


class AccuracyConfig(MetricConfig):
    """Options of Accuracy."""

    topn: int = Field(1, ge=1, description="a sample counts as right if its label is among so many best classes")


class Accuracy(Metric):
    """Decomposable: keeps two counts. outputs: (n, classes) scores, or (n,) predicted classes if topn is 1."""

    Config: ClassVar[type[MetricConfig]] = AccuracyConfig

    def __init__(self, config: AccuracyConfig) -> None:
        super().__init__(config)
        self._right: torch.Tensor | int = 0
        self._seen = 0

    @classmethod
    def label_of(cls, config: AccuracyConfig) -> str:
        return config.label or ("Accuracy" if config.topn == 1 else f"Top-{config.topn}-Accuracy")

    def update(self, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        topn = self.config.topn
        if outputs.ndim == 1 and topn == 1:
            right = outputs == labels
        elif outputs.ndim == 2 and outputs.shape[1] >= topn:
            best = outputs.argmax(1, keepdim=True) if topn == 1 else outputs.topk(topn, 1).indices
            right = (best == labels.unsqueeze(1)).any(1)
        else:
            needed = f"scores of shape (n, classes) with at least {topn} classes"
            raise self.shape_error(needed, outputs, "Lower topn, or bring")
        # Stays on the device: reading it for every batch would wait for the device each time.
        self._right = self._right + right.sum()
        self._seen += len(labels)

    def value(self) -> MetricValue:
        return MetricValue(int(self._right) / self._seen)
