"""Histograms of latencies: their quantiles against the numbers themselves, and their sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.latencies import MAX_BUCKET, histogram, merged, quantile

SECONDS = st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=50)


@given(seconds=SECONDS, share=st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_that_of_the_numbers_but_for_a_sixteenth(seconds: list[float], share: float) -> None:
    exact = float(np.quantile(seconds, share, method="lower"))
    assert quantile(histogram(np.array(seconds)), share) == pytest.approx(exact, rel=1 / 16)


@given(parts=st.lists(SECONDS, max_size=4))
def test_histograms_of_parts_add_up_to_that_of_all(parts: list[list[float]]) -> None:
    together = histogram(np.array([value for part in parts for value in part]))
    assert merged(histogram(np.array(part)) for part in parts) == together
    assert merged(histogram(np.array(part)) for part in reversed(parts)) == together


def test_the_ends_have_buckets_and_none_has_no_quantile() -> None:
    assert list(histogram(np.array([0.0, 1.7e308]))) == [0, MAX_BUCKET - 1]
    assert histogram(np.array([])) == {}
    assert math.isnan(quantile({}, 0.99))
