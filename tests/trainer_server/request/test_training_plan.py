"""The plan of a training against counting by hand."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.trainer_server.request.training_plan import TrainingPlan


def enacted(plan: TrainingPlan) -> list[list[int]]:
    """Batch sizes of each epoch, by going through them."""
    left = plan.max_samples
    epochs: list[list[int]] = []
    while (left is None and len(epochs) < plan.epochs) or (left is not None and left > 0):
        sizes: list[int] = []
        for start in range(0, plan.num_keys, plan.batch_size):
            size = min(plan.batch_size, plan.num_keys - start)
            size = size if left is None else min(size, left)
            if size == 0 or (plan.drop_last and size < plan.batch_size):
                break
            sizes.append(size)
            left = None if left is None else left - size
        if not sizes:
            break
        epochs.append(sizes)
        if left is not None and plan.drop_last and left < plan.batch_size:
            break
    return epochs


@settings(max_examples=8 * settings().max_examples)
@given(
    num_keys=st.integers(0, 40),
    batch_size=st.integers(1, 12),
    drop_last=st.booleans(),
    epochs=st.integers(1, 4),
    max_samples=st.none() | st.integers(1, 150),
    accumulation=st.integers(1, 5),
)
def test_all_numbers_agree_with_going_through_the_batches(
    num_keys: int, batch_size: int, drop_last: bool, epochs: int, max_samples: int | None, accumulation: int
) -> None:
    plan = TrainingPlan(num_keys, batch_size, drop_last, epochs, max_samples, accumulation)
    expected = enacted(plan)
    assert plan.num_epochs == len(expected)
    assert plan.num_batches == sum(map(len, expected))
    assert plan.num_samples == sum(map(sum, expected))
    assert max_samples is None or plan.num_samples <= max_samples
    steps = 0
    for epoch, sizes in enumerate(expected):
        assert plan.batches_in(epoch) == len(sizes)
        ends = [plan.ends_epoch(epoch, i) for i in range(len(sizes))]
        assert ends == [False] * (len(sizes) - 1) + [True]
        group: list[int] = []
        for i in range(len(sizes)):
            group.append(i)
            if plan.steps_after(epoch, i):
                assert all(plan.group_size(epoch, member) == len(group) for member in group)
                steps += 1
                group = []
        assert group == []
    assert plan.num_steps == steps


@settings(max_examples=8 * settings().max_examples)
@given(
    num_keys=st.integers(1, 90),
    batch_size=st.integers(1, 9),
    share=st.floats(0.01, 0.99),
    epochs=st.integers(1, 3),
    max_samples=st.none() | st.integers(1, 120),
    join_single=st.booleans(),
)
def test_chosen_batches_keep_the_ratio_of_an_epoch_exactly(
    num_keys: int, batch_size: int, share: float, epochs: int, max_samples: int | None, join_single: bool
) -> None:
    """Against going through the batches that are loaded. BatchNorm needs two in each, also where one sample is chosen of all, or the size is two."""
    chosen, join_single = max(1, round(share * num_keys)), join_single and batch_size > 1
    plan = TrainingPlan(num_keys, batch_size, True, epochs, max_samples, 1, join_single, chosen)
    size = plan.loaded_per_batch
    loaded = [min(size, num_keys - start) for start in range(0, num_keys, size)]
    if join_single and len(loaded) > 1 and loaded[-1] == 1:
        loaded[-2:] = [size + 1]
    sizes = [plan.chosen_of(index, count) for index, count in enumerate(loaded)]
    assert plan.batches_per_epoch == len(sizes)
    assert plan.samples_per_epoch == sum(sizes)
    assert all(0 < size <= count for size, count in zip(sizes, loaded, strict=True))
    assert max(sizes[:-1], default=0) <= batch_size + (batch_size == 1 or (join_single and batch_size == 2))
    assert sum(sizes) == (max(chosen, min(2, num_keys)) if join_single else chosen)
    if not join_single:
        ratio = chosen / num_keys
        assert all(abs(size - ratio * count) <= 1 for size, count in zip(sizes[:-1], loaded, strict=False))
    else:
        assert all(size >= min(2, count) for size, count in zip(sizes, loaded, strict=True))
    seen, left = list[int](), max_samples
    while (left is None and len(seen) < epochs * len(sizes)) or (left is not None and left > 0):
        number = min(sizes[len(seen) % len(sizes)], left if left is not None else num_keys)
        number += join_single and left is not None and left - number == 1 and (len(seen) + 1) % len(sizes) != 0
        seen.append(number)
        left = None if left is None else left - number
    if max_samples is None:
        assert (plan.num_batches, plan.num_samples) == (len(seen), sum(seen))
    elif not join_single:
        assert (plan.num_batches, plan.num_samples) == (len(seen), max_samples)
    else:
        assert max_samples - plan.num_samples in (0, 1)


def test_batches_of_two_keep_their_ratio_with_batch_norm() -> None:
    for num_keys in (*range(2, 40), 379):
        for chosen in {2, *range(3, num_keys + 1, 7), num_keys, round(0.67 * num_keys)} - {0, 1}:
            plan = TrainingPlan(num_keys, 2, join_single=True, num_chosen=chosen)
            assert plan.samples_per_epoch == chosen, (num_keys, chosen)


def test_small_sets_keep_their_ratio() -> None:
    """The cases of the issue: half of 500 in batches of 64, and sets of less than the candidates of a batch."""
    for num_keys, chosen in ((500, 250), (100, 50), (10, 1), (1, 1)):
        plan = TrainingPlan(num_keys, 64, drop_last=True, num_chosen=chosen)
        assert (plan.samples_per_epoch, plan.num_batches) == (chosen, -(-chosen // 64))
    for num_keys in range(1000, 1100):
        plan = TrainingPlan(num_keys, 64, drop_last=True, num_chosen=num_keys // 2)
        sizes = [
            plan.chosen_of(i, min(plan.loaded_per_batch, num_keys - i * plan.loaded_per_batch)) for i in range(plan.num_batches)
        ]
        assert sum(sizes) == num_keys // 2
        assert 32 <= min(sizes) <= max(sizes) <= 64  # no last batch of a handful
