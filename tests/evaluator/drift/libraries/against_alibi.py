"""Metrics of alibi-detect against direct library calls; Modyn's metrics against the library. Run by `make test-extras` where it is installed."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch
from alibi_detect.cd import CVMDrift, KSDrift, MMDDrift
from alibi_detect.utils.pytorch.distance import mmd2
from alibi_detect.utils.pytorch.kernels import GaussianRBF

from modyn.config.base import Section
from modyn.evaluator.drift import DriftMetric, alibi, compare
from modyn.evaluator.drift.alibi import (
    AlibiDetectCVMDriftMetric,
    AlibiDetectFeatureTestConfig,
    AlibiDetectKSConfig,
    AlibiDetectKSDriftMetric,
    AlibiDetectMmdConfig,
    AlibiDetectMmdDriftMetric,
)
from modyn.evaluator.drift.cramer_von_mises import CVMDriftMetric
from modyn.evaluator.drift.features import FeatureTestConfig, combined
from modyn.evaluator.drift.kolmogorov_smirnov import KSConfig, KSDriftMetric
from modyn.evaluator.drift.mmd import MMDConfig, MMDDriftMetric

Sets = tuple[torch.Tensor, torch.Tensor]

# float32 within kernels of values near 1; the metric is given centred samples, the library those of the test.
ABSOLUTE = 2e-6


@pytest.mark.parametrize("from_reference", [True, False])
def test_mmd_is_that_of_the_detector(sets: Sets, from_reference: bool) -> None:
    reference, current = sets
    detector = MMDDrift(
        reference.numpy(), backend="pytorch", n_permutations=40, configure_kernel_from_x_ref=from_reference, device="cpu"
    )
    torch.manual_seed(3)
    expected = detector.predict(current.numpy())["data"]
    config = AlibiDetectMmdConfig(num_permutations=40, configure_kernel_from_x_ref=from_reference)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    found = compare(AlibiDetectMmdDriftMetric(config, seed=3), *sets)
    assert torch.equal(torch.get_rng_state(), before)
    assert found.distance == pytest.approx(expected["distance"], abs=ABSOLUTE)
    assert found.p_value == pytest.approx(
        expected["p_val"], abs=1 / 40
    )  # A permutation as far away as the sets may change sides.
    without = compare(AlibiDetectMmdDriftMetric(AlibiDetectMmdConfig(configure_kernel_from_x_ref=from_reference)), *sets)
    assert without.p_value is None
    assert without.distance == pytest.approx(expected["distance"], abs=ABSOLUTE)


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
@pytest.mark.parametrize("correction", ["bonferroni", "fdr"])
def test_tests_of_features_are_those_of_the_detectors(sets: Sets, correction: str, alternative: str) -> None:
    reference, current = (rows.numpy() for rows in sets)
    options = {"correction": correction, "p_val": 0.01}
    ks = AlibiDetectKSConfig(alternative_hypothesis=alternative, **options)
    cvm = AlibiDetectFeatureTestConfig(**options)
    for metric, detector in (
        (AlibiDetectKSDriftMetric(ks), KSDrift(reference, alternative=alternative, **options)),
        (AlibiDetectCVMDriftMetric(cvm), CVMDrift(reference, **options)),
    ):
        expected = detector.predict(current)["data"]
        found = compare(metric, *sets)
        assert found.distance == pytest.approx(float(np.mean(expected["distance"])), rel=1e-6)
        assert found.p_value is not None
        assert (found.p_value < 0.01) == bool(expected["is_drift"])  # One p-value says what the library's correction says.


@pytest.mark.parametrize("bandwidth", [0.5, 2.0, 10.0])
def test_our_mmd_is_that_of_the_library(sets: Sets, bandwidth: float) -> None:
    x, y = sets
    kernel = GaussianRBF(torch.tensor([bandwidth]))
    unbiased = compare(MMDDriftMetric(MMDConfig(bandwidth=bandwidth)), x, y).distance
    assert unbiased == pytest.approx(float(mmd2(x, y, kernel)), abs=ABSOLUTE)
    biased = compare(MMDDriftMetric(MMDConfig(bandwidth=bandwidth, biased=True)), x, y).distance
    assert biased == pytest.approx(float(kernel(x, x).mean() + kernel(y, y).mean() - 2 * kernel(x, y).mean()), abs=ABSOLUTE)


def test_our_bandwidth_is_that_of_the_library(sets: Sets) -> None:
    ours = compare(MMDDriftMetric(MMDConfig()), *sets).distance
    theirs = compare(AlibiDetectMmdDriftMetric(AlibiDetectMmdConfig()), *sets).distance
    assert ours == pytest.approx(theirs, abs=ABSOLUTE)


def test_our_tests_of_features_are_those_of_the_library(sets: Sets) -> None:
    reference, current = (rows.numpy() for rows in sets)
    cvm = CVMDrift(reference).predict(current)["data"]
    found = compare(CVMDriftMetric(FeatureTestConfig()), *sets)
    # Ours are of centred samples: rounded to float32, two values may become equal.
    assert found.distance == pytest.approx(float(cvm["distance"].mean()), rel=1e-4)
    assert found.p_value == pytest.approx(combined(cvm["p_val"], "bonferroni"), rel=1e-3)
    ks = KSDrift(reference).predict(current)["data"]
    found = compare(KSDriftMetric(KSConfig()), *sets)
    assert found.distance == pytest.approx(float(ks["distance"].mean()), rel=1e-4)
    # Ours are exact, the library's asymptotic.
    assert found.p_value == pytest.approx(combined(ks["p_val"], "bonferroni"), rel=0.3)


@pytest.mark.parametrize(
    ("metric", "config"),
    [
        (AlibiDetectMmdDriftMetric, AlibiDetectMmdConfig(num_permutations=100)),
        (AlibiDetectKSDriftMetric, AlibiDetectKSConfig()),
        (AlibiDetectCVMDriftMetric, AlibiDetectFeatureTestConfig()),
    ],
)
def test_no_shift_is_told_from_a_large_one(metric: type[DriftMetric], config: Section) -> None:
    rows = torch.randn(400, 5, generator=torch.Generator().manual_seed(1))
    same, shifted = compare(metric(config), rows[:200], rows[200:]), compare(metric(config), rows[:200], rows[200:] + 1)
    assert same.p_value is not None
    assert shifted.p_value is not None
    assert shifted.p_value < 0.01
    assert same.p_value > 0.05
    assert shifted.distance > same.distance
    assert compare(metric(config), rows[:200], rows[200:]) == same


def test_examples_of_docstrings() -> None:
    assert doctest.testmod(alibi).failed == 0
