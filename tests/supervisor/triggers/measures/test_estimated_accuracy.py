"""Estimates of accuracy from confidence: by hand, and of a model whose confidence is the probability of being right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.supervisor.triggers.measures.estimated_accuracy import (
    Calibration,
    average_thresholded_confidence,
    calibrate,
    difference_of_confidences,
)


@pytest.mark.parametrize(
    ("errors", "confidences", "threshold"),
    [
        pytest.param([0, 1, 0, 1], [0.9, 0.2, 0.6, 0.4], 0.6, id="two errors, two samples below"),
        pytest.param([1, 0, 0, 0], [0.9, 0.2, 0.6, 0.4], 0.4, id="whichever samples are the errors"),
        pytest.param([0, 0, 0], [0.5, 0.7, 0.6], 0.5, id="no error, none below"),
        pytest.param([0, 1, 1, 1], [0.5, 0.5, 0.5, 0.9], 0.9, id="three of equal confidence: 1 of 4 at 0.9, all at 0.5"),
        pytest.param([0, 0, 1, 0], [0.5, 0.5, 0.5, 0.9], 0.5, id="the same, nearer to all"),
    ],
)
def test_threshold_by_hand(errors: list[int], confidences: list[float], threshold: float) -> None:
    found = calibrate(np.array(errors, np.float32), np.array(confidences))
    assert (found.accuracy, found.confidence_threshold) == (1 - sum(errors) / len(errors), threshold)
    assert found.mean_confidence == pytest.approx(np.mean(confidences))


def test_a_model_that_is_always_wrong_is_estimated_to_be() -> None:
    found = calibrate(np.ones(3), np.array([0.5, 1.0, 0.6], np.float32))
    assert average_thresholded_confidence(found, np.array([0.9, 1.0], np.float32)) == 0


def test_difference_of_confidences_by_hand() -> None:
    calibration = Calibration(accuracy=0.8, mean_confidence=0.9, confidence_threshold=0.5)
    assert difference_of_confidences(calibration, np.array([0.6, 0.8])) == pytest.approx(0.6)
    assert difference_of_confidences(calibration, np.array([0.05])) == 0, "at least 0"
    assert difference_of_confidences(Calibration(0.99, 0.5, 0.5), np.array([0.9])) == 1, "at most 1"


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1, width=32)), min_size=1, unique_by=lambda pair: pair[1]))
def test_on_what_was_calibrated_with_the_estimates_are_the_accuracy(samples: list[tuple[bool, float]]) -> None:
    errors, confidences = np.array([error for error, _ in samples]), np.array([value for _, value in samples], np.float32)
    calibration = calibrate(errors, confidences)
    for estimate in (average_thresholded_confidence, difference_of_confidences):
        assert estimate(calibration, confidences) == pytest.approx(1 - errors.mean())


Array = np.ndarray[tuple[int], np.dtype[np.float64]]


def test_of_a_calibrated_model_the_difference_of_confidences_is_exact() -> None:
    """Two classes whose probability is a logistic function of x, which the model knows: confidence is the probability of being right."""
    rng = np.random.default_rng(1)

    def look(mean: float) -> tuple[Array, Array]:
        probability = 1 / (1 + np.exp(-rng.normal(mean, 1, 200_000)))
        is_error = (rng.random(len(probability)) < probability) != (probability > 0.5)
        return is_error.astype(np.float64), np.maximum(probability, 1 - probability)

    reference, shifted = look(2.5), look(0.5)
    calibration, accuracy = calibrate(*reference), 1 - shifted[0].mean()
    assert calibration.accuracy - accuracy > 0.15
    assert difference_of_confidences(calibration, shifted[1]) == pytest.approx(accuracy, abs=0.005)
    assert average_thresholded_confidence(calibration, shifted[1]) < accuracy, (
        "it exaggerates: errors are not the least confident"
    )


def test_of_errors_that_are_the_least_confident_samples_average_thresholded_confidence_is_exact() -> None:
    rng = np.random.default_rng(2)

    def look(a: float, b: float) -> tuple[Array, Array]:
        confidence = rng.beta(a, b, 100_000)
        return (confidence < 0.6).astype(np.float64), confidence

    reference, shifted = look(8, 2), look(5, 3)
    accuracy = 1 - shifted[0].mean()
    calibration = calibrate(*reference)
    assert calibration.accuracy - accuracy > 0.2
    assert average_thresholded_confidence(calibration, shifted[1]) == pytest.approx(accuracy, abs=0.005)
