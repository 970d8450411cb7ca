"""Two keys differ whenever the bytes of their samples may differ."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from modyn.cache.keys import NAMESPACE_BYTES, TierName, namespace, sample_keys

TIERS: st.SearchStrategy[TierName] = st.sampled_from(["encoded", "decoded", "augmented"])
PARTS = st.tuples(st.text(max_size=3), st.integers(0, 3), st.text(max_size=3), TIERS)


@given(PARTS, PARTS)
def test_a_namespace_is_equal_where_all_that_makes_its_samples_is(
    one: tuple[str, int, str, TierName], other: tuple[str, int, str, TierName]
) -> None:
    def what_counts(parts: tuple[str, int, str, TierName]) -> tuple[str, int, str | None, TierName]:
        identity, epoch, decoding, tier = parts
        return identity, epoch, None if tier == "encoded" else decoding, tier

    assert len(namespace(*one)) == NAMESPACE_BYTES
    assert (namespace(*one) == namespace(*other)) == (what_counts(one) == what_counts(other))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True))
def test_samples_have_short_keys_of_their_own(keys: list[int]) -> None:
    found = sample_keys(np.array(keys, np.int64))
    assert [len(key) for key in found] == [8] * len(keys)
    assert len(set(found)) == len(keys)
