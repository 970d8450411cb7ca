"""How batches of steps are cut into online updates and steps on drawn samples, with any samples left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import torch
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.online import OnlineConfig
from modyn.dataset.batch import BadSample, Batch, CachedCounts
from modyn.trainer_server.online.new_samples import new_samples
from modyn.trainer_server.online.step_parts import StepParts, part_sizes


def batch_of(keys: list[int], index: int = 0) -> Batch:
    numbers = torch.tensor(keys, dtype=torch.int64)
    counted = {"num_skipped": 2, "bad": (BadSample(1, "here", "why"),), "cached": CachedCounts(1, 0, 0)}
    return Batch(numbers, {"x": numbers.float()}, numbers * 2, torch.ones(len(keys)), 0, index, **counted)  # type: ignore[arg-type]


def online_of(step: int, update: int, drawn: int) -> OnlineConfig:
    return OnlineConfig(trigger={}, step_samples=step, update_samples=update, history_samples=drawn)


@given(
    num_new=st.integers(1, 40),
    step=st.integers(1, 12),
    update=st.integers(1, 12),
    drawn=st.integers(1, 6),
    lost=st.sets(st.integers(0, 60)),
    seed=st.integers(0, 5),
)
def test_each_new_sample_is_in_one_update_and_drawn_ones_in_one_step(
    num_new: int, step: int, update: int, drawn: int, lost: set[int], seed: int
) -> None:
    """The oracle makes the parts one by one from what was meant, and then thins them."""
    update, rng, keys, expected = min(update, step), np.random.default_rng(seed), list[int](), list[list[list[int]]]()
    for first in range(0, num_new, step):
        new = list(range(first, min(first + step, num_new)))
        history = rng.integers(0, new[-1] + 1, drawn).tolist()
        keys += [*new, *history]
        expected.append([*(new[at : at + update] for at in range(0, len(new), update)), history])
    online = online_of(step, update, drawn)
    split, new_ones = StepParts(np.array(keys), online, join_single=False), new_samples(np.array(keys), online)
    tested = list[int]()
    for index, parts in enumerate(expected):
        kept = [[key for key in part if key not in lost] for part in parts]
        batch = batch_of([key for part in kept for key in part], index)
        if not len(batch):
            continue  # Such a batch does not come.
        found = split(batch)
        assert [part.keys.tolist() for part in found] == [part for part in kept if part]
        for part in found:
            tested += part.keys[new_ones.first_seen(part.keys.numpy())].tolist()
    assert tested == [key for key in range(num_new) if key not in lost], "each once, in the update that learns from it"


def test_parts_hold_the_rows_and_what_was_counted_once() -> None:
    split = StepParts(np.array([5, 6, 7, 1, 2]), online_of(3, 2, 2), join_single=False)
    first, second, third = split(batch_of([5, 6, 7, 1, 2]))
    assert [part.labels.tolist() for part in (first, second, third)] == [[10, 12], [14], [2, 4]]
    assert isinstance(third.data, dict)
    assert third.data["x"].tolist() == [1.0, 2.0]
    assert (first.num_skipped, len(first.bad), first.cached.encoded) == (2, 1, 1)
    assert [(part.num_skipped, len(part.bad), part.cached.encoded) for part in (second, third)] == [(0, 0, 0)] * 2


def test_parts_hold_the_columns_of_their_samples() -> None:
    """Preprocessing updates its statistics part by part, so an update is not transformed by what comes after it."""
    columns = pa.RecordBatch.from_pydict({"x": [50, 60, 70, 10, 20]})
    split = StepParts(np.array([5, 6, 7, 1, 2]), online_of(3, 2, 2), join_single=False)
    found = [part.columns for part in split(replace(batch_of([5, 6, 7, 1, 2]), columns=columns))]
    assert [part and part["x"].to_pylist() for part in found] == [[50, 60], [70], [10, 20]]


@given(st.lists(st.integers(1, 4), max_size=8))
def test_no_part_of_one_sample_is_left_for_batch_norm(sizes: list[int]) -> None:
    joined = part_sizes(np.repeat(np.arange(len(sizes)), sizes), join_single=True)
    assert sum(joined) == sum(sizes)
    assert 1 not in joined or joined == [1]


def test_a_sample_that_is_joined_to_the_batch_before_is_a_part_of_its_own() -> None:
    """All but one sample of the second batch were deleted meanwhile."""
    split = StepParts(np.array([0, 1, 2, 0, 3, 4, 5, 1]), online_of(3, 2, 1), join_single=False)
    assert [part.keys.tolist() for part in split(batch_of([0, 1, 2, 0, 5]))] == [[0, 1], [2], [0], [5]]
