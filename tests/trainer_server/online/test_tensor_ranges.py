"""Numbers far outside of the range of all before, of samples that are tensors."""

from __future__ import annotations

import json
import math

import pytest
import torch

from modyn.dataset.batch import Batch
from modyn.models.calls import Data
from modyn.trainer_server.online.tensor_ranges import WARM_UP_ROWS, TensorRanges


def batch(data: Data, labels: torch.Tensor | None = None) -> Batch:
    num = len(next(iter(data.values())) if isinstance(data, dict) else data[0] if isinstance(data, tuple) else data)
    return Batch(torch.arange(num), data, torch.arange(num) if labels is None else labels, torch.ones(num))


def rows(low: float, high: float) -> Batch:
    """Return the samples of a warm-up, between two numbers."""
    return batch(torch.linspace(low, high, WARM_UP_ROWS)[:, None])


@pytest.mark.parametrize(("value", "is_extreme"), [(2.9, False), (3.1, True), (-4.4, False), (-4.6, True), (math.nan, True)])
def test_a_number_is_extreme_beyond_the_range_by_more_than_its_width(value: float, is_extreme: bool) -> None:
    ranges, strange = TensorRanges(), batch(torch.tensor([[value], [0.0]]))
    assert not ranges.has_extremes(batch(torch.tensor([[1e9]]))), "the first ones are learned from"
    ranges = TensorRanges()
    assert not ranges.has_extremes(rows(-2.0, 0.5))
    again = TensorRanges(json.loads(json.dumps(ranges.state())))
    assert ranges.has_extremes(strange) is again.has_extremes(strange) is is_extreme


def test_what_was_accepted_is_extreme_no_more() -> None:
    """A level that rises for ever has fewer and fewer extremes."""
    ranges, found = TensorRanges(), 0
    ranges.has_extremes(rows(0, 1))
    for level in range(1, 1000):
        strange = batch(torch.full((4, 1), float(3 * level)))
        if ranges.has_extremes(strange):
            found += 1
            ranges.accept_extremes(strange)
    assert 1 <= found <= math.log2(3000)
    ranges.accept_extremes(batch(torch.full((4, 1), math.nan)))
    for value in (math.inf, math.nan, 1e30):
        assert not ranges.has_extremes(batch(torch.full((4, 1), value)))


def test_each_input_and_fractions_as_labels_have_a_range() -> None:
    num = WARM_UP_ROWS
    ones, counts = torch.linspace(0, 1, num), torch.arange(num)
    ranges = TensorRanges()
    assert not ranges.has_extremes(batch({"a": ones, "b": 100 * ones, "n": counts}, ones))
    few = torch.ones(2)
    assert not ranges.has_extremes(batch({"a": few, "b": 100 * few, "n": torch.full((2,), 10**9)}, few))
    assert ranges.has_extremes(batch({"a": 100 * few, "b": few, "n": counts[:2]}, few))
    assert ranges.has_extremes(batch({"a": few, "b": few, "n": counts[:2]}, 100 * few))
    classes = TensorRanges()
    classes.has_extremes(batch((ones, ones)))
    assert not classes.has_extremes(batch((few, few), torch.full((2,), 10**9)))
