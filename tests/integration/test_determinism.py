"""The same file and the same seed give the same run, also if the machine does other work meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from modyn.supervisor.client import RunState
from modyn.testing.stack import RunningStack, tiny_evaluation, tiny_pipeline, tiny_training
from tests.support.comparison import RunOutcome, differences, outcome

SELECTION = {
    "name": "CoresetStrategy",
    "maximum_keys_in_memory": 1000,
    "tail_triggers": 1,
    "presampling_config": {"strategy": "Random", "ratio": 60},
}


def pipeline(seed: int | None) -> str:
    """Everything that draws: presampling, initial weights, shuffling over partitions, prefetching by several threads."""
    return tiny_pipeline(
        "repeated",
        trigger={"id": "DataAmountTrigger", "num_samples": 60},
        selection_strategy={**SELECTION, "maximum_keys_in_memory": 25},
        training=tiny_training(
            seed=seed,
            shuffle=True,
            epochs_per_trigger=2,
            dataloader_workers=1,
            num_prefetched_partitions=3,
            parallel_prefetch_requests=2,
        ),
        evaluation=tiny_evaluation("repeated", days=2),
    )


@pytest.fixture(scope="module")
def stack(running_stack: RunningStack) -> RunningStack:
    running_stack.tiny_dataset("repeated", num_samples=200, num_files=4)
    return running_stack


def run(stack: RunningStack, text: str) -> RunOutcome:
    ended = stack.run(text)
    assert ended.state is RunState.FINISHED, ended.error
    with stack.client() as client:
        return outcome(client, ended.run_id)


@pytest.fixture(scope="module")
def first(stack: RunningStack) -> RunOutcome:
    return run(stack, pipeline(seed=11))


def test_the_same_seed_gives_the_same_run(stack: RunningStack, first: RunOutcome) -> None:
    """Two of the runs draw from one dataset in the same services at once."""
    assert len(first.triggers) == 3
    assert [t.num_keys for t in first.triggers] == [36, 72, 72]
    assert len(set(first.weights)) == 3
    assert None not in first.weights
    assert len(first.evaluations) == 3 * 2
    with ThreadPoolExecutor(2) as pool:
        for again in pool.map(run, [stack] * 2, [pipeline(seed=11)] * 2):
            assert differences(first, again) == []


def test_another_seed_gives_other_keys_and_other_weights(stack: RunningStack, first: RunOutcome) -> None:
    other = run(stack, pipeline(seed=12))
    assert [t.position for t in first.triggers] == [t.position for t in other.triggers] == [60, 120, 180]
    assert all(a.keys_checksum != b.keys_checksum for a, b in zip(first.triggers, other.triggers, strict=True))
    assert not set(first.weights) & set(other.weights)


def test_weights_depend_on_the_seed_even_where_the_keys_do_not(stack: RunningStack) -> None:
    one, other = (run(stack, tiny_pipeline("repeated", training=tiny_training(seed=seed, shuffle=True))) for seed in (1, 2))
    assert one.decisions == other.decisions
    assert not set(one.weights) & set(other.weights)
