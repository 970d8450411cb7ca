"""Columns are the same from any source, and wrong ones are named."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from modyn.errors import DataError
from modyn.preprocessing.columns import ColumnKind, ReadColumns, read_columns

NUMBER, CATEGORY, TEXT = ColumnKind.NUMBER, ColumnKind.CATEGORY, ColumnKind.TEXT


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, None, 3], pa.int64()),
        pa.array([1, None, 3], pa.float32()),
        pa.array([1, float("nan"), 3]),
        pa.array([Decimal(1), None, Decimal(3)]),
        pa.chunked_array([[1.0], [None, 3.0]]),
        np.array([1, np.nan, 3], np.float32),
        np.array([[1.0], [np.inf], [3.0]]),
        [1.0, -1e200, 3.0],
    ],
    ids=str,
)
def test_numbers(values: Any) -> None:
    found = read_columns({"n": values}, {"n": NUMBER})["n"]
    assert found.dtype == np.float64
    assert np.array_equal(found, [1, np.nan, 3], equal_nan=True)


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["b", None, "ä", "b"]),
        pa.array(["b", None, "ä", "b"], pa.large_string()),
        pa.array(["ä", "b", None, "ä", "b"]).dictionary_encode()[1:],
        pa.chunked_array([["b"], [None, "ä", "b"]]),
        pa.array(["x", None, "b", None, "ä", "b", None])[2:6],
        np.array(["b", None, "ä", "b"], object),
        np.array([b"b", None, "ä".encode(), b"b"], object),
        ["b", None, "ä", "b"],
    ],
    ids=lambda values: str(getattr(values, "type", type(values).__name__)),
)
def test_categories(values: Any) -> None:
    found = read_columns({"c": values, "other": [1]}, {"c": CATEGORY})["c"]
    assert found.codes.tolist() == [0, -1, 1, 0]
    assert found.texts == ["b", "ä"]
    assert found.counts().tolist() == [2, 1]


@pytest.mark.parametrize("num_rows", [0, 1, 3, 5, 9])
def test_the_first_rows_are_as_if_they_alone_had_been_read(num_rows: int) -> None:
    batch = pa.RecordBatch.from_pydict(
        {"c": ["b", None, "ä", "b", "c"], "t": ["x", None, "y", "z", ""], "n": [1.0, None, 2.0, 3.0, 4.0]}
    )
    kinds = {"c": CATEGORY, "t": TEXT, "n": NUMBER}
    first, alone = ReadColumns.of(batch, kinds).first(num_rows), read_columns(batch[:num_rows], kinds)
    assert np.array_equal(first.columns["n"], alone["n"], equal_nan=True)
    assert first.columns["t"].equals(alone["t"])
    for found in ("codes", "hashes", "texts"):
        assert list(getattr(first.columns["c"], found)) == list(getattr(alone["c"], found))


def test_whole_numbers_and_booleans_are_categories_by_their_text() -> None:
    found = read_columns({"a": np.array([7, -1]), "b": np.array([True, False])}, {"a": CATEGORY, "b": CATEGORY})
    assert (found["a"].texts, found["b"].texts) == (["7", "-1"], ["true", "false"])
    assert read_columns({"b": np.array([True, False])}, {"b": NUMBER})["b"].tolist() == [1, 0]


def test_rows_of_arrow_and_texts() -> None:
    batch = pa.RecordBatch.from_pydict({"t": ["x y", None], "n": [1.0, 2.0], "left out": [0, 0]})
    for raw in (batch, pa.Table.from_batches([batch])):
        found = read_columns(raw, {"n": NUMBER, "t": TEXT})
        assert list(found) == ["n", "t"]
        assert found["t"].to_pylist() == ["x y", None]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "column 'a' is missing; the batch has no columns"),
        ({"a": [1], "b": ["x", "y"]}, "column 'b' has 2 rows, 'a' has 1"),
        ({"a": ["x"], "b": ["x"]}, "column 'a' is string, but declared as number"),
        ({"a": [1], "b": [1.5]}, "column 'b' is double, but declared as category"),
        ({"a": np.zeros((2, 2)), "b": ["x"]}, r"column 'a' has the shape \(2, 2\)"),
        ({"a": [1], "b": [b"\xff"]}, "column 'b' cannot be read as category: .* send strings in UTF-8"),
        ({"a": np.array([1j]), "b": ["x"]}, "column 'a', complex128, cannot be read"),
        ({"a": [object()], "b": ["x"]}, "column 'a', object, cannot be read"),
        ({"a": np.array(["2020"], "datetime64[Y]"), "b": ["x"]}, "column 'a'"),
        ({"a": [1], "b": pa.array([["x"]])}, "column 'b' is list"),
    ],
)
def test_wrong_columns_are_named(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_columns(columns, {"a": NUMBER, "b": CATEGORY})
