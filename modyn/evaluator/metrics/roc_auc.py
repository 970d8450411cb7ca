"""The metric RocAuc."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from modyn.evaluator.metrics.metrics import Metric, MetricConfig, MetricValue

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch


class RocAucConfig(MetricConfig):
    """Options of RocAuc."""

    max_samples: int = Field(
        5_000_000,
        ge=2,
        description="largest number of samples whose scores are kept for an interval (9 bytes each); of more samples, this number is drawn "
        "uniformly",
    )


class RocAuc(Metric):
    """The probability that a sample of class 1 has a higher score than a sample of class 0; ties count half (Mann-Whitney U).

    The metric is holistic and keeps the scores of at most `max_samples` samples. If there are more samples, the kept samples are drawn uniformly with
    a fixed seed, and the note reports this. outputs: (n,) or (n, 1) scores of class 1, or (n, 2) scores of both classes. labels: 0 or 1. The value is
    undefined if only one class occurs.

    >>> import torch
    >>> from modyn.evaluator.metrics.metrics import build_metric
    >>> metric = build_metric({"name": "RocAuc"})
    >>> metric.update(torch.tensor([0.1, 0.4, 0.3, 0.8]), torch.tensor([0, 0, 1, 1]))  # 3 of 4 pairs are in order
    >>> metric.value().value
    0.75
    """

    Config: ClassVar[type[MetricConfig]] = RocAucConfig

    def __init__(self, config: RocAucConfig) -> None:
        super().__init__(config)
        self._rng = np.random.default_rng(0)
        self._seen = 0
        self._held = 0
        self._columns: list[tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_], npt.NDArray[np.float32]]] = []

    def update(self, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        """Copy the scores to the host as float32. Raises InvalidArgumentError for labels other than 0 and 1."""
        if outputs.ndim == 2 and outputs.shape[1] == 2:
            # The difference increases with the probability of class 1, for logits as well as for probabilities.
            outputs = outputs[:, 1] - outputs[:, 0]
        elif outputs.ndim == 2 and outputs.shape[1] == 1:
            outputs = outputs[:, 0]
        if outputs.ndim != 1:
            raise self.shape_error("one score a sample, or one for each of two classes", outputs)
        labels = self.labels_of(labels)
        self.check_two_classes(labels)
        self.count_not_numbers(outputs)
        positive = labels == 1
        scores = outputs.detach().float().cpu().numpy().copy()
        # Each sample gets a random ticket. `_thin` keeps the samples with the smallest tickets.
        self._columns.append((scores, positive.cpu().numpy(), self._rng.random(len(scores), np.float32)))
        self._seen += len(scores)
        self._held += len(scores)
        if self._held > 2 * self.config.max_samples:
            self._thin()

    def _thin(self) -> None:
        scores, positive, tickets = (np.concatenate(column) for column in zip(*self._columns, strict=True))
        limit = self.config.max_samples
        if len(scores) > limit:
            # The samples with the smallest tickets are a uniform sample. The division of the samples into batches does not matter.
            kept = np.sort(np.argpartition(tickets, limit - 1)[:limit])
            scores, positive, tickets = scores[kept], positive[kept], tickets[kept]
        self._columns, self._held = [(scores, positive, tickets)], len(scores)

    def value(self) -> MetricValue:
        """Return a value in [0, 1]; undefined if a score is NaN or only one class occurs."""
        if (undefined := self.undefined()) is not None:
            return undefined
        self._thin()
        scores, positive, _ = self._columns[0]
        note = f"estimated from {self._held} of {self._seen} samples, drawn at random" if self._held < self._seen else ""
        if positive.all() or not positive.any():
            return MetricValue(None, f"undefined: all {self._held} samples are of class {int(positive.all())}")
        return MetricValue(_auc(scores, positive), note)


def _auc(scores: npt.NDArray[np.float32], positive: npt.NDArray[np.bool_]) -> float:
    """Compute the area under the ROC curve from the sum of the positives' ranks. Equal scores get the mean of their ranks."""
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(sizes) - (sizes - 1) / 2
    num_positive = int(positive.sum())
    u = float(mean_ranks[group[positive]].sum()) - num_positive * (num_positive + 1) / 2
    return u / (num_positive * (len(scores) - num_positive))
