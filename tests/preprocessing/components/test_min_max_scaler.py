"""The scaler is scikit-learn's, with the same bits of the range, for any batches and merges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import MinMaxScaler

from modyn.errors import ConfigError
from tests.preprocessing.streams import NUMBERS, batch, merged, parts_of, pipeline

FILL = {"id": "Imputer", "strategy": "constant", "fill_value": 0}


@given(parts=parts_of(NUMBERS), order=st.integers(0, 10**6), clip=st.booleans())
def test_any_batches_and_merges_scale_as_one_fit(parts: list[list[Any]], order: int, clip: bool) -> None:
    section = {"id": "MinMaxScaler", "feature_range": [-1, 3], "clip": clip}
    made = [pipeline(section, FILL) for _ in parts]
    for scaler, part in zip(made, parts, strict=True):
        for rows in (part[:3], part[3:]):
            scaler.update(batch(n=rows))
    values = np.array([row for part in parts for row in part], np.float64)[:, None]
    if np.isfinite(values).any():
        oracle = MinMaxScaler(feature_range=(-1, 3), clip=clip).fit(values)
        tried = np.append(values, [[7.5], [-2e6]], axis=0)
        expected = np.nan_to_num(oracle.transform(tried), nan=0.0)
        scaler = merged(made, order)
        if oracle.data_range_[0] > 1e-5 or oracle.data_range_[0] == 0:
            atol = 1e-6 * float(np.abs(expected).max())
            np.testing.assert_allclose(scaler.transform(batch(n=tried[:, 0])).dense, expected, rtol=1e-5, atol=atol)
        seen = scaler.summary()["components"]["0 MinMaxScaler"]["n"]
        assert seen == {"min": oracle.data_min_[0], "max": oracle.data_max_[0]}


def test_nothing_seen_changes_nothing() -> None:
    scaler = pipeline({"id": "MinMaxScaler", "feature_range": [2, 3]})
    assert scaler.transform(batch(n=[7.0])).dense.tolist() == [[7.0]]
    assert scaler.summary()["components"]["0 MinMaxScaler"]["n"] == {"min": None, "max": None}


@pytest.mark.parametrize("ends", [[0, 1], [-1e30, 1e30]])
def test_values_that_hardly_differ_have_finite_features(ends: list[float]) -> None:
    scaler = pipeline({"id": "MinMaxScaler", "feature_range": ends})
    assert scaler.update_and_transform(batch(n=[0.0, 5e-324, 1e-310])).dense[:, 0] == pytest.approx(ends[0])


@pytest.mark.parametrize("ends", [[1, 1], [2, 1], [0, float("inf")], [float("nan"), 1]])
def test_a_range_must_ascend(ends: list[float]) -> None:
    with pytest.raises(ConfigError, match=r"components\.0\.feature_range: .* is wrong: two finite numbers are expected"):
        pipeline({"id": "MinMaxScaler", "feature_range": ends})
