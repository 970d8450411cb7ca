"""F1: the harmonic mean of precision and recall, 2·tp / (2·tp + fp + fn), of one class or averaged over classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from modyn.errors import InvalidArgumentError
from modyn.evaluator.metrics import Metric, MetricConfig, MetricValue

if TYPE_CHECKING:
    import torch


class F1ScoreConfig(MetricConfig):
    """Options of F1Score."""

    num_classes: int = Field(ge=2, description="classes are 0 … num_classes - 1")
    average: Literal["macro", "micro", "weighted", "binary"] = Field(
        "macro",
        description="mean over classes, over samples, over classes weighted by their samples, or the class `pos_label` alone",
    )
    pos_label: int = Field(1, ge=0, description="the positive class of average: binary")

    @model_validator(mode="after")
    def _binary_has_two(self) -> F1ScoreConfig:
        if self.average == "binary" and self.num_classes != 2:
            raise ValueError(f"average 'binary' is for num_classes 2, not {self.num_classes}; use macro, micro or weighted")
        if self.pos_label >= self.num_classes:
            raise ValueError(f"pos_label {self.pos_label} is none of the classes 0 … {self.num_classes - 1}")
        return self


class F1Score(Metric):
    """Decomposable: keeps three counts a class. outputs: (n, num_classes) scores or (n,) predicted classes.

    A class that is neither there nor predicted has F1 0, as in scikit-learn with zero_division=0; where it counts, the note says so.
    """

    Config: ClassVar[type[MetricConfig]] = F1ScoreConfig

    def __init__(self, config: F1ScoreConfig) -> None:
        super().__init__(config)
        # Pairs (label, prediction); everything else follows from how often each occurs.
        self._pairs: torch.Tensor | int = 0

    def update(self, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        n = self.config.num_classes
        if outputs.ndim == 2 and outputs.shape[1] == n:
            predicted = outputs.argmax(1)
        elif outputs.ndim == 1:
            predicted = outputs.long()
        else:
            needed = f"scores of shape (n, {n}) or predicted classes of shape (n,)"
            raise self.shape_error(needed, outputs, "Correct num_classes, or bring")
        labels = labels.long()
        for name, values in (("label", labels), ("prediction", predicted)):
            if len(values) and not 0 <= int(values.min()) <= int(values.max()) < n:
                odd = int(values.max()) if int(values.max()) >= n else int(values.min())
                raise InvalidArgumentError(f"{self.label} with num_classes {n} found the {name} {odd}; classes are 0 … {n - 1}")
        self._pairs = self._pairs + (labels * n + predicted).bincount(minlength=n * n)

    def value(self) -> MetricValue:
        assert not isinstance(self._pairs, int)
        average, positive = self.config.average, self.config.pos_label
        pairs = self._pairs.reshape(self.config.num_classes, -1).cpu().numpy()
        right, labelled, predicted = pairs.diagonal(), pairs.sum(1), pairs.sum(0)
        if average == "micro":
            return MetricValue(float(right.sum() / pairs.sum()))
        both = labelled + predicted
        scores = 2 * right / both.clip(min=1)
        absent = [int(c) for c in (both == 0).nonzero()[0]]
        if average == "binary":
            note = f"class {positive} neither occurs nor is predicted" if positive in absent else ""
            return MetricValue(float(scores[positive]), note)
        if average == "weighted":
            return MetricValue(float((scores * labelled).sum() / labelled.sum()))
        shown = ", ".join(map(str, absent[:10])) + (", …" if len(absent) > 10 else "")
        return MetricValue(
            float(scores.mean()), f"classes that neither occur nor are predicted count as 0: {shown}" if absent else ""
        )
