"""Buckets hold equal shares of what came."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given

from tests.preprocessing.streams import NUMBERS, batch, dense, parts_of, pipeline


def test_buckets_hold_equal_shares() -> None:
    bucketizer = pipeline({"id": "Bucketizer", "num_buckets": 8})
    values = np.random.default_rng(0).lognormal(0, 1.5, 8000)
    for part in np.split(values, 8):
        bucketizer.update(batch(n=part))
    counts = np.bincount(dense(bucketizer, batch(n=values))[:, 0].astype(int), minlength=9)
    assert counts[0] == 0
    np.testing.assert_allclose(counts[1:], 1000, atol=25)
    summary = bucketizer.summary()["components"]["0 Bucketizer"]["n"]
    np.testing.assert_allclose(summary["edges"], np.quantile(values, np.arange(1, 8) / 8), rtol=summary["error"])
    assert summary["values"] == 8000


@given(parts=parts_of(NUMBERS))
def test_indices_rise_with_values_within_their_bounds(parts: list[list[Any]]) -> None:
    bucketizer = pipeline({"id": "Bucketizer", "num_buckets": 3}, {"id": "OneHotEncoder"})
    for part in parts:
        bucketizer.update(batch(n=part))
    rows = sorted((value for part in parts for value in part if value is not None), key=float)
    indices = bucketizer.transform(batch(n=rows)).indices
    assert indices.tolist() == sorted(indices.tolist())
    assert set(indices.tolist()) <= {1, 2, 3}
    assert bucketizer.transform(batch(n=[None])).indices.tolist() == [0]
    assert bucketizer.num_sparse == 4
