"""Categories of a vocabulary have features of their own, others share by hash."""

from __future__ import annotations

import pyarrow as pa

from modyn.preprocessing.statistics.string_hash import bucket, hash_strings
from tests.preprocessing.streams import batch, pipeline


def test_the_first_ones_have_their_own_and_others_share() -> None:
    encoder = pipeline({"id": "HashedEncoder", "max_categories": 2, "num_buckets": 5}, columns="c")
    assert encoder.num_features == 8
    found = encoder.update_and_transform(batch(c=["a", "b", "a", None, "over"]))
    over = 3 + int(bucket(hash_strings(pa.array(["over"])), 5)[0])
    assert found.indices.tolist() == [1, 2, 1, 0, over]
    assert encoder.summary()["components"]["0 HashedEncoder"]["c"]["over_bound"] == 1


def test_without_a_vocabulary_it_keeps_no_category() -> None:
    encoder = pipeline({"id": "HashedEncoder", "num_buckets": 50}, columns="c")
    values = [f"value {number}" for number in range(1000)]
    before = encoder.transform(batch(c=values))
    assert encoder.update_and_transform(batch(c=values)).indices.tolist() == before.indices.tolist()
    assert encoder.state()["0 HashedEncoder"]["c"]["categories"] == []
    assert set(before.indices.tolist()) == set(range(1, 51))
