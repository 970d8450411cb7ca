"""The sketch keeps its error, its memory, and the same state in any order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import CorruptStateError
from modyn.preprocessing.statistics.quantile_sketch import MAX_BINS, QuantileSketch

ANY = st.one_of(st.floats(-1e140, 1e140), st.floats(-10, 10), st.just(float("nan")))
PARTS = st.lists(st.lists(ANY, max_size=20), min_size=1, max_size=6)


def sketch_of(parts: list[list[float]]) -> QuantileSketch:
    sketch = QuantileSketch()
    for part in parts:
        sketch.update(np.array(part, np.float64))
    return sketch


def same(one: QuantileSketch, other: QuantileSketch) -> bool:
    ours, theirs = one.state(), other.state()
    return all(np.array_equal(ours[name], theirs[name]) for name in ours)


@given(parts=PARTS, shares=st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_quantiles_are_within_the_error(parts: list[list[float]], shares: list[float]) -> None:
    sketch = sketch_of(parts)
    values = np.sort([value for part in parts for value in part if not np.isnan(value)])
    found = sketch.quantiles(np.array(shares))
    if not len(values):
        assert np.isnan(found).all()
        return
    assert sketch.count == len(values)
    check_within_error(sketch, values, np.array(shares))


def check_within_error(sketch: QuantileSketch, values: npt.NDArray[np.float64], shares: npt.NDArray[np.float64]) -> None:
    """values: all that the sketch has seen, ascending."""
    for share, estimate in zip(shares, sketch.quantiles(shares), strict=True):
        position = share * (len(values) - 1)
        low = int(position)
        high = min(low + 1, len(values) - 1)
        exact = values[low] + (values[high] - values[low]) * (position - low)
        largest = max(abs(values[low]), abs(values[high]))
        assert abs(estimate - exact) <= sketch.error * largest * (1 + 1e-9) + 2.3e-308


@given(parts=PARTS, order=st.randoms(use_true_random=False))
def test_any_order_and_any_merges_give_the_same_state(parts: list[list[float]], order: object) -> None:
    whole = sketch_of(parts)
    shuffled = [value for part in parts for value in part]
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    assert same(sketch_of([[value] for value in shuffled]), whole)
    merged = QuantileSketch()
    for part in reversed(parts):
        merged.merge(sketch_of([part]))
    assert same(merged, whole)


@pytest.mark.parametrize("seed", range(3))
def test_a_wild_stream_stays_within_its_memory_and_order_does_not_matter(seed: int) -> None:
    generator = np.random.default_rng(seed)
    parts = [generator.choice([-1, 1], 4000) * 10.0 ** generator.uniform(-140, 140, 4000) for _ in range(20)]
    forward, backward, merged = QuantileSketch(), QuantileSketch(), QuantileSketch()
    for part in parts:
        forward.update(part)
        assert len(forward.state()["bins"]) <= MAX_BINS
    for part in parts[::-1]:
        backward.update(part)
    for at in range(0, 20, 4):
        some = QuantileSketch()
        for part in parts[at : at + 4]:
            some.update(part)
        merged.merge(some)
    assert same(forward, backward)
    assert same(forward, merged)
    assert 0 < forward.precision < 7
    check_within_error(forward, np.sort(np.concatenate(parts)), np.linspace(0, 1, 101))


def test_a_restored_sketch_is_the_same_and_a_wrong_state_is_refused() -> None:
    sketch, restored = sketch_of([[1.0, -0.0, 5e-324, -1e140]]), QuantileSketch()
    restored.load_state(sketch.state())
    assert same(sketch, restored)
    with pytest.raises(CorruptStateError, match="bins without counts"):
        restored.load_state({**sketch.state(), "counts": np.zeros(1, np.int64)})


def test_few_distinct_values_are_exact_and_others_as_exact_as_the_bins_allow() -> None:
    generator = np.random.default_rng(0)
    seconds = 1_700_000_000 + generator.integers(0, 3600, 50_000).astype(np.float64)
    exact = sketch_of([seconds.tolist()])
    shares = np.linspace(0, 1, 11)
    assert exact.error == 0
    assert exact.quantiles(shares).tolist() == np.quantile(seconds, shares).tolist()
    values = generator.uniform(1, 2**16, 50_000)
    assert sketch_of([values.tolist()]).error <= 0.001
    assert sketch_of([(10 ** generator.uniform(-9, 9, 50_000)).tolist()]).error <= 2**-8
