"""Streams of the tests of preprocessing: batches of columns, cut and merged in all ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from hypothesis import strategies as st

from modyn.preprocessing import Preprocessing

Rows = Sequence[Any] | npt.NDArray[np.float64]

NUMBERS = st.one_of(st.none(), st.floats(-1e6, 1e6, allow_subnormal=False), st.integers(-5, 5).map(float))
CATEGORIES = st.one_of(st.none(), st.sampled_from(["a", "b", "ä", "", "long word", "🦊"]), st.text(max_size=3))
TEXTS = st.one_of(st.none(), st.lists(st.sampled_from(["one", "Two", "three's", "-", "ß"]), max_size=5).map(" ".join))


def parts_of(rows: st.SearchStrategy[Any], max_parts: int = 5) -> st.SearchStrategy[list[list[Any]]]:
    """Streams in several batches, empty ones among them."""
    return st.lists(st.lists(rows, max_size=8), min_size=1, max_size=max_parts)


def numbers(values: Rows) -> pa.Array:
    """A column of numbers, None where missing."""
    return pa.array(values, pa.float64())


def strings(values: Rows) -> pa.Array:
    """A column of categories or texts, None where missing."""
    return pa.array(values, pa.string())


def batch(**columns: Rows) -> dict[str, pa.Array]:
    """Columns by name: those that begin with n hold numbers, others strings."""
    return {name: numbers(values) if name[0] == "n" else strings(values) for name, values in columns.items()}


def pipeline(*components: Mapping[str, Any], columns: str = "n", **options: Any) -> Preprocessing:
    """Components over columns whose kind their first letter says: n numbers, c categories, t texts."""
    kinds = {"n": "number", "c": "category", "t": "text"}
    return Preprocessing(
        {"columns": {name: kinds[name[0]] for name in columns.split()}, "components": list(components), **options}
    )


def merged(parts: Sequence[Preprocessing], order: int) -> Preprocessing:
    """Merge all parts from left to right as a tree that `order` decides."""
    left = list(parts)
    while len(left) > 1:
        at = order % (len(left) - 1)
        order //= 7
        left[at].merge(left.pop(at + 1))
    return left[0]


def dense(preprocessing: Preprocessing, columns: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """Return all features of a batch as a matrix."""
    return preprocessing.transform(columns).to_dense()
