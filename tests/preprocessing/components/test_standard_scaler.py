"""The scaler is scikit-learn's, for any batches and merges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from tests.preprocessing.streams import NUMBERS, batch, merged, numbers, parts_of, pipeline

FILL = {"id": "Imputer", "strategy": "constant", "fill_value": 0}


@pytest.mark.parametrize(("with_mean", "with_std"), [(True, True), (False, True), (True, False)])
@given(parts=parts_of(NUMBERS), order=st.integers(0, 10**6))
def test_any_batches_and_merges_scale_as_one_fit(parts: list[list[Any]], order: int, with_mean: bool, with_std: bool) -> None:
    made = []
    for part in parts:
        made.append(pipeline({"id": "StandardScaler", "with_mean": with_mean, "with_std": with_std}, FILL))
        for rows in (part[:3], part[3:]):
            made[-1].update(batch(n=rows))
    values = np.array([row for part in parts for row in part], np.float64)[:, None]
    if np.isfinite(values).any():
        oracle = StandardScaler(with_mean=with_mean, with_std=with_std).fit(values)
        expected = np.nan_to_num(oracle.transform(values), nan=0.0)
        found = merged(made, order).transform(batch(n=values[:, 0])).dense
        # A spread of rounding errors only divides to anything; scikit-learn draws the line where the batches let it fall.
        spread = np.nanstd(values)
        if spread > 1e-7 * max(1.0, np.nanmax(np.abs(values))) or spread == 0:
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_it_is_partial_fit_batch_by_batch() -> None:
    generator, oracle, scaler = np.random.default_rng(1), StandardScaler(), pipeline({"id": "StandardScaler"}, columns="n0 n1")
    for size in (1, 7, 100, 3):
        values = generator.lognormal(3, 2, (size, 2)) + np.array([0, 1e5])
        expected = oracle.partial_fit(values).transform(values)
        found = scaler.update_and_transform({"n0": numbers(values[:, 0]), "n1": numbers(values[:, 1])})
        np.testing.assert_allclose(found.dense, expected, rtol=2e-6, atol=1e-9)
    summary = scaler.summary()["components"]["0 StandardScaler"]
    assert summary["n1"]["mean"] == pytest.approx(oracle.mean_[1], rel=1e-14)
    assert summary["n1"]["std"] == pytest.approx(oracle.scale_[1], rel=1e-12)
    assert summary["n1"]["values"] == 111


def test_a_constant_column_is_only_shifted_and_nothing_seen_changes_nothing() -> None:
    scaler = pipeline({"id": "StandardScaler"})
    assert scaler.transform(batch(n=[3.0])).dense.tolist() == [[3.0]]
    scaler.update(batch(n=[0.1] * 10))
    assert scaler.transform(batch(n=[0.1, 1.1])).dense[:, 0] == pytest.approx([0, 1])
