"""Moments of parts are those of the whole, in any order and any tree of merges."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from modyn.preprocessing.statistics.moments import Moments

VALUES = st.lists(st.lists(st.floats(-1e3, 1e3) | st.just(float("nan")), max_size=20), min_size=1, max_size=6)


@given(parts=VALUES, offset=st.sampled_from([0.0, 1e6]), order=st.integers(0, 10**6))
def test_any_parts_and_merges_give_the_moments_of_the_whole(parts: list[list[float]], offset: float, order: int) -> None:
    made = []
    for part in parts:
        made.append(Moments(1))
        made[-1].update(np.array([part]) + offset)
    while len(made) > 1:
        at = order % (len(made) - 1)
        order //= 5
        made[at].merge(made.pop(at + 1))
    values = np.array([value for part in parts for value in part]) + offset
    values = values[~np.isnan(values)]
    assert made[0].count.tolist() == [len(values)]
    if len(values):
        np.testing.assert_allclose(made[0].mean, values.mean(), rtol=1e-12, atol=1e-10)
        np.testing.assert_allclose(made[0].variance(), values.var(), rtol=1e-8, atol=1e-14 * offset**2 + 1e-9)


def test_a_small_spread_far_from_zero_is_not_lost() -> None:
    moments, values = Moments(1), 1e9 + np.random.default_rng(0).normal(0, 1e-2, 10_000)
    for part in np.split(values, 100):
        moments.update(part[None])
    np.testing.assert_allclose(moments.variance(), values.var(), rtol=1e-5)
