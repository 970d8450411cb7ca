"""The plan of a training against counting by hand."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.trainer_server.training_plan import TrainingPlan


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
    num_keys=st.integers(0, 60),
    batch_size=st.integers(1, 9),
    extra=st.integers(0, 12),
    drop_last=st.booleans(),
    epochs=st.integers(1, 3),
    max_samples=st.none() | st.integers(1, 120),
    join_single=st.booleans(),
)
def test_chosen_batches_are_counted_as_they_come(
    num_keys: int, batch_size: int, extra: int, drop_last: bool, epochs: int, max_samples: int | None, join_single: bool
) -> None:
    """Against going through the candidates: those left over are part of the batch before them where BatchNorm could not use them alone."""
    candidates, join_single = batch_size + extra, join_single and batch_size > 1
    plan = TrainingPlan(num_keys, batch_size, drop_last, epochs, max_samples, 1, join_single, candidates)
    loaded = [min(candidates, num_keys - start) for start in range(0, num_keys, candidates)]
    if drop_last and loaded and (2 * loaded[-1] * batch_size + candidates) // (2 * candidates) < batch_size:
        loaded.pop()
    elif join_single and len(loaded) > 1 and loaded[-1] == 1:
        loaded[-2:] = [candidates + 1]
    sizes = [plan.num_chosen(count) for count in loaded]
    assert all(size == batch_size for size, count in zip(sizes, loaded, strict=True) if count == candidates or drop_last)
    assert plan.batches_per_epoch == len(sizes)
    assert plan.samples_per_epoch == sum(sizes)
    if max_samples is None:
        assert (plan.num_batches, plan.num_samples) == (epochs * len(sizes), epochs * sum(sizes))
        assert plan.num_epochs == (epochs if sizes else 0)
    else:
        assert plan.num_samples <= max_samples
