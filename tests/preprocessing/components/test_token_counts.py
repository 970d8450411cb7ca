"""Words are counted as a loop over them counts them."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.preprocessing.statistics.string_hash import bucket, hash_strings
from tests.preprocessing.streams import TEXTS, batch, parts_of, pipeline

LETTERS = st.text(st.sampled_from("aB1 _-.ß,é\n"), max_size=12)


@pytest.mark.parametrize("binary", [False, True])
@given(texts=st.lists(st.one_of(st.none(), LETTERS), max_size=6))
def test_hashed_counts(texts: list[str | None], binary: bool) -> None:
    counts = pipeline({"id": "TokenCounts", "num_features": 97, "binary": binary}, columns="t")
    found = counts.update_and_transform(batch(t=texts))
    for at, text in enumerate(texts):
        tokens = re.findall(r"\w+", (text or "").lower())
        places = bucket(hash_strings(pa.array(tokens, pa.string())), 97).tolist()
        row = slice(found.indptr[at], found.indptr[at + 1])
        expected = sorted(Counter(places).items())
        assert found.indices[row].tolist() == [place for place, _ in expected]
        assert found.values[row].tolist() == [1 if binary else count for _, count in expected]


@given(text=st.text(st.characters(max_codepoint=127), max_size=30))
def test_ascii_texts_have_the_tokens_that_they_have_among_others(text: str) -> None:
    counts = pipeline({"id": "TokenCounts", "num_features": 97}, columns="t")
    alone, others = counts.transform(batch(t=[text])), counts.transform(batch(t=[text, "é", None])).rows(0, 1)
    assert alone.indices.tolist() == others.indices.tolist()
    assert alone.values.tolist() == others.values.tolist()


@given(parts=parts_of(TEXTS))
def test_counts_of_a_growing_vocabulary(parts: list[list[Any]]) -> None:
    counts = pipeline({"id": "TokenCounts", "method": "vocabulary", "num_features": 3, "lowercase": False}, columns="t")
    order = list[str]()
    for part in parts:
        tokens = [re.findall(r"\w+", text or "") for text in part]
        order = list(dict.fromkeys([*order, *(token for row in tokens for token in row)]))[:3]
        found = counts.update_and_transform(batch(t=part)).to_dense()
        for row, of_row in zip(found, tokens, strict=True):
            expected = Counter(order.index(token) + 1 if token in order else 0 for token in of_row)
            assert row.tolist() == [expected[at] for at in range(4)]
    assert counts.summary()["components"]["0 TokenCounts"]["t"]["categories"] == len(order)
