"""Estimate a model's accuracy on samples without labels from its confidence. Pure functions of arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Calibration:
    """Confidence and accuracy of a model on samples with labels."""

    accuracy: float
    mean_confidence: float
    confidence_threshold: float
    """The confidence for which the share of samples with at least this confidence is nearest to the accuracy."""


def calibrate(errors: NDArray[Any], confidences: NDArray[Any]) -> Calibration:
    """Calibrate on samples with labels.

    The number of samples below the threshold equals the number of errors. The threshold is the confidence at this index of the confidences in
    ascending order. If all samples are errors, the threshold is above all confidences.

    Args: errors: 1 or 0, (n,), n ≥ 1. confidences: largest class probability, (n,).

    >>> calibrate(np.array([0, 1, 0, 0]), np.array([0.9, 0.5, 0.6, 0.8]))
    Calibration(accuracy=0.75, mean_confidence=0.7, confidence_threshold=0.6)
    """
    confidences = np.asarray(confidences, np.float64)
    accuracy = 1 - float(np.mean(errors))
    ascending = np.sort(confidences)
    above_all = np.nextafter(ascending[-1], np.inf)
    candidates = np.append(ascending, above_all)
    at_least = candidates[round(float(np.sum(errors)))]
    # If several confidences equal the threshold, more samples are at or above it than intended. The next higher confidence may then be nearer.
    higher = candidates[np.searchsorted(candidates, at_least, side="right") :][:1]
    distance = [abs(float(np.mean(confidences >= threshold)) - accuracy) for threshold in (at_least, *higher)]
    nearest = (at_least, *higher)[int(np.argmin(distance))]
    return Calibration(accuracy, float(confidences.mean()), float(nearest))


def average_thresholded_confidence(calibration: Calibration, confidences: NDArray[Any]) -> float:
    """Estimate the accuracy as the share of samples with at least the calibrated confidence (Garg and others: Leveraging Unlabeled Data to
    Predict Out-of-Distribution Performance, 2022: ATC with maximum confidence).

    Args: confidences: (n,), n ≥ 1.

    >>> average_thresholded_confidence(Calibration(0.75, 0.7, 0.6), np.array([0.9, 0.59, 0.6, 0.3]))
    0.5
    """
    return float(np.mean(np.asarray(confidences, np.float64) >= calibration.confidence_threshold))


def difference_of_confidences(calibration: Calibration, confidences: NDArray[Any]) -> float:
    """Estimate the accuracy as the calibrated accuracy minus the loss of mean confidence since the calibration (Guillory and others: Predicting with
    Confidence on Unseen Distributions, 2021: DoC with coefficient 1), within [0, 1].

    Args: confidences: (n,), n ≥ 1.

    >>> round(difference_of_confidences(Calibration(0.75, 0.7, 0.6), np.array([0.5, 0.7])), 3)
    0.65
    """
    return min(
        1.0, max(0.0, calibration.accuracy - (calibration.mean_confidence - float(np.mean(confidences, dtype=np.float64))))
    )
