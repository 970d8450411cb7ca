"""Promises of every component."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.errors import CorruptStateError
from modyn.preprocessing import COMPONENTS, Features, Preprocessing
from tests.preprocessing.streams import CATEGORIES, NUMBERS, TEXTS, batch, parts_of, pipeline

FILL = {"id": "Imputer", "strategy": "constant", "fill_value": 0.5, "columns": ["n0", "n1"]}
ENCODE = {"id": "OneHotEncoder", "max_categories": 3}
COUNT = {"id": "TokenCounts", "num_features": 5}
SECTIONS: dict[str, list[dict[str, Any]]] = {
    "Bucketizer": [{"id": "Bucketizer", "num_buckets": 3}, ENCODE, COUNT],
    "CrossFeatures": [FILL, {"id": "CrossFeatures", "columns": ["c0", "c1"], "num_buckets": 9}, ENCODE, COUNT],
    "FeatureHasher": [{"id": "FeatureHasher", "num_features": 7}, COUNT],
    "HashedEncoder": [FILL, {"id": "HashedEncoder", "max_categories": 2, "num_buckets": 3}, COUNT],
    "Imputer": [{"id": "Imputer"}, {"id": "Imputer", "strategy": "most_frequent", "max_categories": 2}, ENCODE, COUNT],
    "InputGuard": [{"id": "InputGuard", "max_categories": 2, "warm_up_rows": 3}, FILL, ENCODE, COUNT],
    "LabelIndexer": [FILL, {"id": "LabelIndexer", "max_categories": 3}, COUNT],
    "MinMaxScaler": [{"id": "MinMaxScaler", "clip": True}, FILL, ENCODE, COUNT],
    "OneHotEncoder": [FILL, ENCODE, COUNT],
    "PolynomialFeatures": [FILL, {"id": "PolynomialFeatures", "degree": 3}, ENCODE, COUNT],
    "StandardScaler": [{"id": "StandardScaler"}, FILL, ENCODE, COUNT],
    "TokenCounts": [FILL, ENCODE, {"id": "TokenCounts", "method": "vocabulary", "num_features": 2}],
}
"""A pipeline for each component, over the same columns."""
SECTIONS_TOO: dict[str, list[dict[str, Any]]] = {
    **SECTIONS,
    "median": [{"id": "Imputer", "strategy": "median"}, ENCODE, COUNT],
}
STREAMS = parts_of(st.tuples(NUMBERS, NUMBERS, CATEGORIES, CATEGORIES, TEXTS))
COLUMNS = ("n0", "n1", "c0", "c1", "t0")


def made(name: str) -> Preprocessing:
    return pipeline(*SECTIONS_TOO[name], columns=" ".join(COLUMNS))


def columns_of(rows: list[Any]) -> dict[str, pa.Array]:
    return batch(**{name: [row[at] for row in rows] for at, name in enumerate(COLUMNS)})


def bits(features: Features) -> list[bytes]:
    return [array.tobytes() for array in (features.dense, features.indptr, features.indices, features.values)]


def test_all_components_are_here() -> None:
    assert set(SECTIONS) == {id_ for id_, plugin in COMPONENTS.plugins.items() if plugin.distribution == "modyn"}


@pytest.mark.parametrize("name", SECTIONS_TOO)
@given(stream=STREAMS)
@settings(max_examples=settings().max_examples // 4)
def test_a_row_alone_has_the_bits_that_it_has_in_a_batch(name: str, stream: list[list[Any]]) -> None:
    preprocessing = made(name)
    for rows in stream:
        preprocessing.update(columns_of(rows))
    rows = [row for part in stream for row in part]
    before = preprocessing.to_bytes()
    whole = preprocessing.transform(columns_of(rows))
    for at, row in enumerate(rows):
        assert bits(preprocessing.transform(columns_of([row]))) == bits(whole.rows(at, at + 1))
    assert preprocessing.to_bytes() == before
    assert whole.num_features == preprocessing.num_features == whole.to_dense().shape[1]
    if len(whole.indices):
        assert 0 <= whole.indices.min() <= whole.indices.max() < whole.num_sparse


@pytest.mark.parametrize("name", SECTIONS_TOO)
@given(stream=STREAMS, cut=st.integers(0, 5))
@settings(max_examples=settings().max_examples // 4)
def test_a_restored_state_continues_as_if_it_had_never_stopped(name: str, stream: list[list[Any]], cut: int) -> None:
    whole, restored, updated = made(name), made(name), made(name)
    for at, rows in enumerate(stream):
        if at == cut:
            restored = Preprocessing.from_bytes(restored.to_bytes())
        columns = columns_of(rows)
        copies = {column: pa.array(values.to_pylist(), values.type) for column, values in columns.items()}
        features = bits(whole.update_and_transform(columns))
        assert features == bits(restored.update_and_transform(columns))
        assert columns == copies
        updated.update(columns)
        assert features == bits(updated.transform(columns)), "an update and then the transform"
    # The same batches in the same order give the same bytes, and `update` alone gives them too.
    assert whole.to_bytes() == restored.to_bytes() == updated.to_bytes()
    assert whole.summary() == restored.summary()
    assert whole.num_rows == sum(map(len, stream))


@pytest.mark.parametrize("name", SECTIONS_TOO)
@given(stream=STREAMS, empty=STREAMS)
@settings(max_examples=settings().max_examples // 4)
def test_merging_with_nothing_changes_nothing(name: str, stream: list[list[Any]], empty: list[list[Any]]) -> None:
    left, right, plain = made(name), made(name), made(name)
    left.merge(made(name))
    for rows in stream:
        for preprocessing in (left, right, plain):
            preprocessing.update(columns_of(rows))
    left.merge(made(name))
    fresh = made(name)
    fresh.merge(right)
    assert left.to_bytes() == fresh.to_bytes() == plain.to_bytes()
    other = made(name)
    for rows in empty:
        other.update(columns_of(rows))
    kept = other.to_bytes()
    left.merge(other)
    assert other.to_bytes() == kept
    assert left.num_rows == plain.num_rows + other.num_rows


@pytest.mark.parametrize("name", SECTIONS_TOO)
def test_batches_without_rows_and_without_values(name: str) -> None:
    preprocessing = made(name)
    none: tuple[Any, ...] = (None,) * 5
    for rows in ([], [none] * 3, []):
        features = preprocessing.update_and_transform(columns_of(rows))
        assert len(features) == len(rows)
        assert np.isfinite(features.dense).all()
    assert Preprocessing.from_bytes(preprocessing.to_bytes()).to_bytes() == preprocessing.to_bytes()


@pytest.mark.parametrize("name", SECTIONS_TOO)
def test_states_of_others_are_refused(name: str) -> None:
    preprocessing = made(name)
    state = preprocessing.state()
    with pytest.raises(CorruptStateError, match="restore a state of this pipeline"):
        preprocessing.load_state({**state, "9 Unknown": {}})
    for component, found in state.items():
        if component != "num_rows" and found:
            with pytest.raises(CorruptStateError, match="restore a state"):
                preprocessing.load_state({**state, component: dict.fromkeys(found)})
