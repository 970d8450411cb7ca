"""The drift metric DomainClassifierDriftMetric."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from modyn.config.base import Section
from modyn.evaluator.drift.base import Drift, DriftMetric
from modyn.evaluator.drift.features import Floats

if TYPE_CHECKING:
    import torch

BLOCK: Final = 4096
"""Rows that are standardized at once, in 64 bits."""


class DomainClassifierConfig(Section):
    """Options of DomainClassifierDriftMetric."""

    num_folds: int = Field(5, ge=2, le=100, description="parts of the cross-validation")
    regularization: float = Field(1.0, gt=0, description="C of the logistic regression: the smaller, the simpler the classifier")


class DomainClassifierDriftMetric(DriftMetric):
    """How well a classifier tells current from reference samples: its cross-validated area under the ROC curve, 0.5 without drift.

    Logistic regression on features standardized over both sets; the distance is the mean of the folds' areas. The p-value is that of the Mann-Whitney
    test of a classifier that has seen one half of the samples, on the other half: folds depend on each other, and a test that adds them up
    finds drift where there is none. (Lopez-Paz and Oquab: Revisiting Classifier Two-Sample Tests, 2017.)
    """

    Config: ClassVar[type[Section]] = DomainClassifierConfig
    in_unit_interval = True
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
            # Other rows weigh nothing: a copy of those of a fold would be as large as all that is compared.
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
    """Features at mean 0 and deviation 1, those of one value at 0. Of both sets together, which tells nothing of the set that a row is of.

    Args:
        rows: (n, d), n ≥ 1; overwritten.
    """
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    blocks = [slice(first, first + BLOCK) for first in range(0, len(rows), BLOCK)]
    for block in blocks:
        scaler.partial_fit(rows[block].astype(np.float64))
    for block in blocks:
        rows[block] = scaler.transform(rows[block].astype(np.float64))
    return rows
