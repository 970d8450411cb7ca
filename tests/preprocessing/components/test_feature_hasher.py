"""Hashed features have stable places, signs on average, and the values of numbers."""

from __future__ import annotations

import numpy as np

from tests.preprocessing.streams import batch, dense, pipeline

HASHER = {"id": "FeatureHasher", "num_features": 1000}


def test_values_signs_and_places() -> None:
    hasher = pipeline(HASHER, columns="n0 n1 c0 c1")
    rows = batch(n0=[2.5, None, 1e300], n1=[1, 1, 1], c0=["a", None, "b"], c1=["a", "a", "a"])
    found = hasher.update_and_transform(rows)
    assert hasher.num_features == 1000
    assert found.indptr.tolist() == [0, 4, 8, 12]
    indices, values = found.indices.reshape(3, 4), found.values.reshape(3, 4)
    assert np.abs(values).tolist() == [[2.5, 1, 1, 1], [0, 1, 0, 1], [0, 1, 1, 1]]  # 1e300 counts as missing
    assert len(set(indices[0].tolist())) == 4  # the same category in two columns is two features
    assert (indices[0, 3], values[0, 3]) == (indices[1, 3], values[1, 3])


def test_signs_are_balanced_and_may_be_left_out() -> None:
    values = [f"word {number}" for number in range(2000)]
    signed = pipeline(HASHER, columns="c").transform(batch(c=values))
    assert abs(signed.values.mean()) < 0.1
    assert np.bincount(signed.indices, minlength=1000).max() < 12
    plain = pipeline({**HASHER, "alternate_sign": False}, columns="c").transform(batch(c=values))
    assert np.array_equal(plain.indices, signed.indices)
    assert set(plain.values.tolist()) == {1.0}


def test_buckets_can_be_hashed_too() -> None:
    hasher = pipeline({"id": "Bucketizer", "num_buckets": 2}, {**HASHER, "alternate_sign": False})
    hasher.update(batch(n=[1, 2, 3, 4]))
    found = dense(hasher, batch(n=[1, 4, None]))
    assert found.sum(axis=1).tolist() == [1, 1, 0]
    assert found[0].argmax() != found[1].argmax()
