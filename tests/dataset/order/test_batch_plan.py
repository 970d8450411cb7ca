"""The plan: every epoch serves every key once, for any sizes, workers and point of resumption."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.dataset.order.batch_plan import Plan, augmentation_seed, num_batches, samples_per_epoch
from modyn.errors import InvalidArgumentError

PLANS = st.builds(
    Plan,
    num_keys=st.integers(0, 60),
    partition_size=st.integers(1, 25),
    batch_size=st.integers(1, 17),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    seed=st.integers(0, 5),
    trigger_id=st.integers(0, 3),
)


def served(plan: Plan, epochs: int, first_batch: int = 0, worker: int = 0, num_workers: int = 1) -> dict[int, list[int]]:
    """Position in the trigger set of each sample, by number of the batch in the whole stream; checks how slices tile reads."""
    batches: dict[int, list[int]] = {}
    complete: list[int] = []
    for read in plan.reads(epochs, first_batch, worker, num_workers):
        rows = read.rows()
        assert len(set(rows.tolist())) == len(rows) > 0
        end = 0
        for part in read.slices:
            assert part.start == end < part.stop
            end = part.stop
            number = part.epoch * plan.num_batches + part.index
            assert number not in complete
            positions = rows[part.start : part.stop] + read.partition * plan.partition_size
            batches.setdefault(number, []).extend(positions.tolist())
            if part.last:
                complete.append(number)
        assert end == len(rows)
    assert complete == list(batches) == sorted(batches)
    return batches


@given(PLANS, st.integers(0, 3))
def test_every_epoch_serves_every_sample_once_in_full_batches(plan: Plan, epochs: int) -> None:
    batches = served(plan, epochs)
    assert list(batches) == list(range(epochs * plan.num_batches))
    for epoch in range(epochs):
        of_epoch = [batches[epoch * plan.num_batches + i] for i in range(plan.num_batches)]
        positions = [position for batch in of_epoch for position in batch]
        assert all(len(batch) == plan.batch_size for batch in of_epoch[:-1])
        assert len(set(positions)) == len(positions) == samples_per_epoch(plan.num_keys, plan.batch_size, plan.drop_last)
        if not plan.drop_last:
            assert sorted(positions) == list(range(plan.num_keys))
        if not plan.shuffle:
            assert positions == list(range(len(positions)))


@given(PLANS, st.integers(1, 3), st.integers(1, 5), st.integers(0, 12))
def test_workers_and_resumption_do_not_change_the_batches(plan: Plan, epochs: int, num_workers: int, first: int) -> None:
    whole = {number: batch for number, batch in served(plan, epochs).items() if number >= first}
    shares = [served(plan, epochs, first, worker, num_workers) for worker in range(num_workers)]
    assert {number: batch for share in shares for number, batch in share.items()} == whole
    # Round robin: asking the workers in turn gives the stream in order.
    for worker, share in enumerate(shares):
        assert list(share) == [number for number in whole if (number - first) % num_workers == worker]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(PLANS)
def test_shuffling_depends_on_seed_trigger_and_epoch_alone(plan: Plan) -> None:
    assert served(plan, 2) == served(plan, 2)
    for partition in range(plan.num_partitions):
        assert sorted(plan.sample_order(0, partition).tolist()) == list(range(plan.partition_length(partition)))
    assert sorted(plan.partition_order(1).tolist()) == list(range(plan.num_partitions))


def test_another_seed_trigger_epoch_or_partition_gives_another_order() -> None:
    plan = Plan(1000, 100, 10, shuffle=True, seed=1, trigger_id=1)
    orders = [
        plan.sample_order(0, 0),
        plan.sample_order(1, 0),
        plan.sample_order(0, 1),
        Plan(1000, 100, 10, shuffle=True, seed=2, trigger_id=1).sample_order(0, 0),
        Plan(1000, 100, 10, shuffle=True, seed=1, trigger_id=2).sample_order(0, 0),
    ]
    assert len({order.tobytes() for order in orders}) == len(orders)
    assert not np.array_equal(plan.partition_order(0), plan.partition_order(1))


def test_a_seed_gives_the_same_order_for_ever() -> None:
    """A training that is resumed or repeated for comparison must find the same order again, even on another machine."""
    plan = Plan(100_000, 60_000, 10, shuffle=True, seed=1, trigger_id=1)
    assert plan.sample_order(0, 1)[:5].tolist() == [7486, 22730, 28398, 7235, 33248]
    assert Plan(8, 8, 2, shuffle=True).sample_order(0, 0).tolist() == [7, 1, 4, 6, 0, 5, 3, 2]


@given(st.integers(0, 100), st.integers(1, 40), st.integers(1, 20), st.booleans())
def test_counts_agree_with_the_plan(num_keys: int, partition_size: int, batch_size: int, drop_last: bool) -> None:
    plan = Plan(num_keys, partition_size, batch_size, drop_last)
    batches = served(plan, 1)
    assert num_batches(num_keys, batch_size, drop_last) == len(batches)
    assert samples_per_epoch(num_keys, batch_size, drop_last) == sum(map(len, batches.values()))


def test_augmentation_seeds_differ_by_each_argument() -> None:
    seeds = {
        augmentation_seed(*arguments) for arguments in [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    }
    assert len(seeds) == 5
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_impossible_plans_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="sizes are at least 1"):
        Plan(10, 5, 0)
