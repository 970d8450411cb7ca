"""One feature per category, as in scikit-learn, with a fixed width."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder

from tests.preprocessing.streams import batch, parts_of, pipeline


@given(parts=parts_of(st.sampled_from("abcde")), tried=st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=9))
def test_it_is_a_batch_encoder_that_ignores_unknown_ones(parts: list[list[Any]], tried: list[str]) -> None:
    encoder = pipeline({"id": "OneHotEncoder", "max_categories": 10}, columns="c0 c1")
    order = list[str]()
    for part in parts:
        encoder.update(batch(c0=part, c1=part))
        order += [value for value in dict.fromkeys(part) if value not in order]
    found = encoder.transform(batch(c0=tried, c1=tried[::-1]))
    assert (found.num_sparse, found.dense.shape, len(found.values)) == (22, (len(tried), 0), 2 * len(tried))
    both = found.to_dense()
    assert np.array_equal(both[:, :11], both[::-1, 11:])
    if order:
        oracle = OneHotEncoder(categories=[order], handle_unknown="ignore", sparse_output=False).fit([["a"]])
        expected = oracle.transform([[value] for value in tried])
        assert np.array_equal(both[:, 1 : 1 + len(order)], expected)
        assert np.array_equal(both[:, 0], 1 - expected.sum(axis=1))


def test_over_the_bound_missing_and_unknown_share_the_first_feature() -> None:
    encoder = pipeline({"id": "OneHotEncoder", "max_categories": 1}, columns="c")
    found = encoder.update_and_transform(batch(c=["a", "b", None]))
    assert found.indices.tolist() == [1, 0, 0]
    assert found.values.tolist() == [1, 1, 1]
    assert encoder.transform(batch(c=["c"])).indices.tolist() == [0]
