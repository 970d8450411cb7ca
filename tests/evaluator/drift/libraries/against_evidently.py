"""Metrics of evidently against reports of the library; Modyn's metrics against its distances. Run by `make test-extras` where it is installed."""

from __future__ import annotations

import doctest
import os
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import torch
from scipy.spatial.distance import cdist

from modyn.config.base import Section
from modyn.evaluator.drift import DriftMetric, compare, evidently
from modyn.evaluator.drift.base import PermutationConfig
from modyn.evaluator.drift.energy import EnergyDriftMetric
from modyn.evaluator.drift.evidently import (
    EvidentlyHellingerDistanceDriftMetric,
    EvidentlyModelConfig,
    EvidentlyModelDriftMetric,
    EvidentlyRatioConfig,
    EvidentlyRatioDriftMetric,
    EvidentlySimpleDistanceConfig,
    EvidentlySimpleDistanceDriftMetric,
)
from modyn.evaluator.drift.kolmogorov_smirnov import KSConfig, KSDriftMetric
from modyn.evaluator.drift.means import MeanDistanceConfig, MeanDistanceDriftMetric
from modyn.evaluator.drift.mmd import MMDConfig, MMDDriftMetric
from modyn.evaluator.drift.wasserstein import WassersteinConfig, WassersteinDriftMetric

os.environ["DO_NOT_TRACK"] = "1"

from evidently.legacy.calculations.stattests import get_stattest, registry
from evidently.legacy.core import ColumnType
from evidently.legacy.metrics import EmbeddingsDriftMetric
from evidently.legacy.metrics.data_drift.embedding_drift_methods import distance, mmd, model, ratio
from evidently.legacy.pipeline.column_mapping import ColumnMapping
from evidently.legacy.report import Report

Sets = tuple[torch.Tensor, torch.Tensor]
TESTS = get_args(EvidentlyRatioConfig.model_fields["component_stattest"].annotation)


def frames(sets: Sets) -> list[pd.DataFrame]:
    return [pd.DataFrame(rows.numpy(), columns=[f"feature_{i}" for i in range(rows.shape[1])]) for rows in sets]


def reported(sets: Sets, method: Any) -> float:
    """Return the score of embeddings in a report of the library."""
    reference, current = frames(sets)
    report = Report([EmbeddingsDriftMetric("all", drift_method=method)])
    mapping = ColumnMapping(embeddings={"all": list(reference.columns)})
    report.run(reference_data=reference, current_data=current, column_mapping=mapping)
    return float(report.as_dict()["metrics"][0]["result"]["drift_score"])


def scored(sets: Sets, method: Any) -> float:
    """Return the score of a method of the library, without the pictures of a report, which take seconds."""
    reference, current = frames(sets)
    return float(method(current, reference)[0])


def of_features(sets: Sets, test: str) -> npt.NDArray[np.float64]:
    """Return the result of the library's test for each feature, (d,)."""
    reference, current = frames(sets)
    return np.array(
        [
            get_stattest(reference[name], current[name], ColumnType.Numerical, test)(
                reference[name].copy(), current[name].copy(), ColumnType.Numerical, None
            ).drift_score
            for name in reference
        ]
    )


def test_the_score_of_a_method_is_that_of_a_report(sets: Sets) -> None:
    found = compare(EvidentlyModelDriftMetric(EvidentlyModelConfig()), *sets).distance
    assert found == pytest.approx(reported(sets, model()), rel=1e-6)


@pytest.mark.parametrize(("bootstrap", "components"), [(False, None), (True, 3)])
def test_model_and_distance_are_those_of_the_library(sets: Sets, bootstrap: bool, components: int | None) -> None:
    np.random.seed(5)
    state = np.random.get_state(legacy=False)["state"]["key"]
    options: dict[str, Any] = {"bootstrap": bootstrap, "num_pca_component": components}
    theirs = {"bootstrap": bootstrap, "pca_components": components}
    metric = EvidentlyModelDriftMetric(EvidentlyModelConfig(quantile_probability=0.9, **options))
    found = compare(metric, *sets)
    assert np.array_equal(np.random.get_state(legacy=False)["state"]["key"], state)
    assert found.p_value is None
    assert found.distance == pytest.approx(scored(sets, model(quantile_probability=0.9, **theirs)), rel=1e-6)
    for name in ("euclidean", "cosine", "cityblock", "chebyshev"):
        config = EvidentlySimpleDistanceConfig(distance_metric=name, **options)
        found = compare(EvidentlySimpleDistanceDriftMetric(config), *sets)
        assert found.distance == pytest.approx(scored(sets, distance(dist=name, **theirs)), rel=1e-5)


@pytest.mark.parametrize(("test", "components"), [*((test, None) for test in TESTS), ("wasserstein", 3)])
def test_the_share_of_drifted_features_is_that_of_the_library(sets: Sets, test: str, components: int | None) -> None:
    if test == "empirical_mmd":  # takes seconds a feature
        sets = sets[0][:40, 1:3], sets[1][:40, 1:3]
    config = EvidentlyRatioConfig(component_stattest=test, component_stattest_threshold=0.05, num_pca_component=components)
    method = ratio(component_stattest=test, component_stattest_threshold=0.05, pca_components=components)
    assert compare(EvidentlyRatioDriftMetric(config), *sets).distance == scored(sets, method)


def test_every_test_of_numbers_can_be_named() -> None:
    assert set(TESTS) == {name for name, kinds in registry._registered_stat_tests.items() if ColumnType.Numerical in kinds}


def test_hellinger_is_the_mean_of_the_features(sets: Sets) -> None:
    found = compare(EvidentlyHellingerDistanceDriftMetric(Section()), *sets)
    assert found.distance == pytest.approx(of_features(sets, "hellinger").mean(), rel=1e-6)


def test_our_distances_are_those_of_the_library(sets: Sets) -> None:
    for name in ("euclidean", "cosine"):
        ours = compare(MeanDistanceDriftMetric(MeanDistanceConfig(distance=name)), *sets).distance
        assert ours == pytest.approx(scored(sets, distance(dist=name)), rel=1e-4)
    ours = compare(WassersteinDriftMetric(WassersteinConfig()), *sets).distance
    assert ours == pytest.approx(of_features(sets, "wasserstein").mean(), rel=1e-5)
    for i, (energy, p_value) in enumerate(zip(of_features(sets, "ed"), of_features(sets, "ks"), strict=True)):
        feature = [rows[:, i] for rows in sets]
        assert compare(EnergyDriftMetric(PermutationConfig()), *feature).distance == pytest.approx(energy, abs=2e-3)
        assert compare(KSDriftMetric(KSConfig()), *feature).p_value == pytest.approx(p_value, rel=1e-6)


def test_our_mmd_is_that_of_the_library(sets: Sets) -> None:
    """The library's bandwidth is 2σ² = the squared median of the distances between both sets; the library replaces negative values by 0."""
    bandwidth = float(np.median(cdist(*(rows.double().numpy() for rows in sets)))) / 2**0.5
    ours = compare(MMDDriftMetric(MMDConfig(bandwidth=bandwidth)), *sets).distance
    assert max(ours, 0) == pytest.approx(scored(sets, mmd()), abs=2e-6)


@pytest.mark.parametrize(
    ("metric", "config"),
    [
        (EvidentlyModelDriftMetric, EvidentlyModelConfig()),
        (EvidentlyRatioDriftMetric, EvidentlyRatioConfig()),
        (EvidentlySimpleDistanceDriftMetric, EvidentlySimpleDistanceConfig()),
        (EvidentlyHellingerDistanceDriftMetric, Section()),
    ],
)
def test_no_shift_is_told_from_a_large_one(metric: type[DriftMetric], config: Section) -> None:
    rows = torch.randn(800, 5, generator=torch.Generator().manual_seed(1))
    same, shifted = compare(metric(config), rows[:400], rows[400:]), compare(metric(config), rows[:400], rows[400:] + 1)
    assert shifted.distance > same.distance
    assert compare(metric(config), rows[:400], rows[400:]) == same


def test_examples_of_docstrings() -> None:
    assert doctest.testmod(evidently).failed == 0
