"""Imputed values equal those of scikit-learn, or are within the stated error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer

from modyn.errors import ConfigError
from tests.preprocessing.streams import NUMBERS, batch, merged, parts_of, pipeline


@pytest.mark.parametrize("strategy", ["mean", "median", "most_frequent"])
@given(parts=parts_of(NUMBERS), order=st.integers(0, 10**6))
def test_any_batches_and_merges_fill_as_one_fit(strategy: str, parts: list[list[Any]], order: int) -> None:
    made = [pipeline({"id": "Imputer", "strategy": strategy}) for _ in parts]
    for imputer, part in zip(made, parts, strict=True):
        for rows in (part[:2], part[2:]):
            imputer.update(batch(n=rows))
    values = np.array([row for part in parts for row in part], np.float64)[:, None]
    imputer = merged(made, order)
    fill = float(imputer.transform(batch(n=[None])).dense[0, 0])
    if not np.isfinite(values).any():
        assert fill == 0
        return
    expected = SimpleImputer(strategy=strategy).fit(values).statistics_[0]
    largest = np.nanmax(np.abs(values))
    assert fill == pytest.approx(expected, rel=1e-6, abs=largest * (2**-8 if strategy == "median" else 1e-6) + 1e-38)
    given_values = values[np.isfinite(values)]
    assert imputer.transform(batch(n=given_values)).dense[:, 0].tolist() == given_values.astype(np.float32).tolist()
    assert imputer.summary()["components"]["0 Imputer"]["n"]["missing"] == np.isnan(values).sum()


def test_categories_are_filled_with_the_most_frequent_one() -> None:
    imputer = pipeline({"id": "Imputer", "strategy": "most_frequent"}, {"id": "LabelIndexer"}, columns="c")
    assert imputer.update_and_transform(batch(c=[None, None])).dense[:, 0].tolist() == [1, 1]  # "missing"
    found = imputer.update_and_transform(batch(c=["b", "a", "b", None])).dense[:, 0]
    assert found.tolist() == [2, 3, 2, 2]
    assert imputer.transform(batch(c=[None])).dense.tolist() == [[2]]
    assert imputer.summary()["components"]["0 Imputer"]["c"] == {"fill": "b", "missing": 3, "rows": 6, "error": 0}


def test_very_long_categories_are_not_counted() -> None:
    imputer = pipeline({"id": "Imputer", "strategy": "most_frequent"}, {"id": "LabelIndexer"}, columns="c")
    imputer.update(batch(c=["x" * 1000, "x" * 1000, "y"]))
    assert imputer.summary()["components"]["0 Imputer"]["c"]["fill"] == "y"
    assert len(imputer.to_bytes()) < 2000


def test_a_constant_is_filled_into_columns_of_its_kind() -> None:
    imputer = pipeline(
        {"id": "Imputer", "strategy": "constant", "fill_value": -1},
        {"id": "Imputer", "strategy": "constant", "fill_value": "none"},
        {"id": "LabelIndexer"},
        columns="n c",
    )
    assert imputer.update_and_transform(batch(n=[None, 2], c=[None, "x"])).dense.tolist() == [[-1, 2], [2, 1]]


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 1e141])
def test_a_value_that_is_not_a_usable_number_is_missing(value: float) -> None:
    imputer = pipeline({"id": "Imputer"})
    assert imputer.update_and_transform(batch(n=[1.0, value, 3.0])).dense[:, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "constant"}, "fill_value: is required"),
        ({"strategy": "mean", "fill_value": "x"}, "fill_value: 'x' is text"),
        ({"strategy": "constant", "fill_value": float("inf")}, "fill_value: inf is wrong"),
        ({"strategy": "average"}, "strategy: 'average' is wrong"),
        ({"strategy": "mean", "columns": ["c"]}, "'c' is of the kind category here; Imputer takes columns of the kind number"),
        ({"strategy": "constant", "fill_value": 1, "columns": ["c"]}, "'c' is of the kind category here"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        pipeline({"id": "Imputer", **options}, columns="n c")
    assert message in str(raised.value)
