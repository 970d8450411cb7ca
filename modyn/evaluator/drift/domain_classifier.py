"""The drift metric DomainClassifierDriftMetric."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from modyn.config.base import Section
from modyn.evaluator.drift.base import UNIT, Drift, DriftMetric
from modyn.evaluator.drift.features import Floats

if TYPE_CHECKING:
    import torch

BLOCK: Final = 4096
"""Number of rows that are standardised at once in float64."""


class DomainClassifierConfig(Section):
    """Options of DomainClassifierDriftMetric."""

    num_folds: int = Field(5, ge=2, le=100, description="number of folds of the cross-validation")
    regularization: float = Field(
        1.0,
        gt=0,
        description="inverse regularisation strength C of the logistic regression; smaller values give a simpler classifier",
    )


class DomainClassifierDriftMetric(DriftMetric):
    """The cross-validated area under the ROC curve of a classifier that separates current from reference samples; 0.5 without drift.

    The classifier is a logistic regression on features that are standardised over both sets. The distance is the mean area of the folds. The p-value
    comes from a Mann-Whitney test: the classifier is trained on one half of the samples and tested on the other half. A test over all folds would
    report drift where there is no drift, because the folds depend on each other. (Lopez-Paz and Oquab: Revisiting Classifier Two-Sample Tests, 2017.)

    >>> import torch
    >>> from modyn.evaluator.drift import compare
    >>> metric = DomainClassifierDriftMetric(DomainClassifierConfig())
    >>> drift = compare(metric, torch.arange(20.0), torch.arange(20.0) + 10)
    >>> round(drift.distance, 3), round(drift.p_value, 3)
    (0.875, 0.001)
    """

    Config: ClassVar[type[Section]] = DomainClassifierConfig
    distance_range = UNIT
    min_samples = 10
    needs = ("scipy", "sklearn")

    def compare(self, reference: torch.Tensor, current: torch.Tensor) -> Drift:
        """See `DriftMetric.compare`."""
        from scipy.stats import mannwhitneyu
        from sklearn.linear_model import LogisticRegression
        from sklearn.metrics import roc_auc_score
        from sklearn.model_selection import StratifiedKFold

        rows = standardized(np.concatenate([part.cpu().numpy() for part in (reference, current)]))
        is_current = np.repeat([False, True], [len(reference), len(current)])

        def scores(train: NDArray[np.int64], test: NDArray[np.int64]) -> Floats:
            # Weights of 0 exclude the other rows. A copy of the rows of a fold would double the memory.
            weights = np.zeros(len(rows))
            weights[train] = 1
            classifier = LogisticRegression(C=self.config.regularization, max_iter=1000).fit(rows, is_current, weights)
            found: Floats = classifier.decision_function(rows)[test]
            return found

        def folds(number: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
            found: Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]
            found = StratifiedKFold(number, shuffle=True, random_state=self.seed).split(rows, is_current)
            return found

        number = min(self.config.num_folds, len(reference), len(current))
        areas = [roc_auc_score(is_current[test], scores(train, test)) for train, test in folds(number)]
        train, test = next(iter(folds(2)))
        of_half, positive = scores(train, test), is_current[test]
        p_value = mannwhitneyu(of_half[positive], of_half[~positive], alternative="greater").pvalue
        return Drift(float(np.mean(areas)), float(p_value))


def standardized(rows: Floats) -> Floats:
    """Scale features to mean 0 and deviation 1; constant features become 0. Both sets are scaled together, so that the scaling does not reveal the
    set of a row.

    Args: rows: (n, d), n ≥ 1; overwritten.
    """
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    blocks = [slice(first, first + BLOCK) for first in range(0, len(rows), BLOCK)]
    for block in blocks:
        scaler.partial_fit(rows[block].astype(np.float64))
    for block in blocks:
        rows[block] = scaler.transform(rows[block].astype(np.float64))
    return rows
