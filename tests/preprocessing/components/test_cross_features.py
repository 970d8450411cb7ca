"""A feature for each combination of categories of a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import ConfigError
from tests.preprocessing.streams import CATEGORIES, batch, pipeline

ENCODE = {"id": "OneHotEncoder", "max_categories": 5}


@given(rows=st.lists(st.tuples(CATEGORIES, CATEGORIES, CATEGORIES), min_size=1, max_size=10))
def test_rows_share_a_feature_where_they_share_the_combination(rows: list[tuple[Any, ...]]) -> None:
    crosses = pipeline({"id": "CrossFeatures", "columns": ["c0", "c1", "c2"], "num_buckets": 1 << 30}, ENCODE, columns="c0 c1 c2")
    found = crosses.transform(batch(c0=[row[0] for row in rows], c1=[row[1] for row in rows], c2=[row[2] for row in rows]))
    assert [entry.column for entry in crosses.ranges] == ["c0", "c1", "c2", "crosses"]
    indices = found.indices.reshape(len(rows), 6)[:, 3:]
    for at, names in enumerate([(0, 1), (0, 2), (1, 2)]):
        assert ((indices[:, at] - 18) >> 30 == at).all()
        combinations = [tuple(row[name] for name in names) for row in rows]
        same = np.array([[one == other for other in combinations] for one in combinations])
        assert np.array_equal(indices[:, at][:, None] == indices[:, at], same)


def test_buckets_of_numbers_are_crossed_with_categories() -> None:
    crosses = pipeline(
        {"id": "Bucketizer", "num_buckets": 2},
        {"id": "CrossFeatures", "columns": ["n", "c"], "num_buckets": 1 << 20},
        ENCODE,
        columns="n c",
    )
    found = crosses.update_and_transform(batch(n=[1, 2, 9, 9], c=["a", "a", "a", "b"]))
    indices = found.indices.reshape(4, 3)[:, 2]
    assert indices[0] == indices[1]
    assert len(set(indices.tolist())) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["c0"]}, "columns: "),
        ({"columns": ["c0", "c1"], "degree": 3}, "degree: 3 is more than the 2 columns"),
        ({"columns": ["c0", "c0"]}, "columns: 'c0' occurs twice"),
        ({"columns": ["c0", "c1"], "output": "c0"}, "output: there is a column 'c0' already"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        pipeline({"id": "CrossFeatures", **options}, columns="c0 c1")
    assert f"preprocessing.components.0.{message}" in str(raised.value)
