"""Turns of downsampling policies by the score of the newest model on real services: `kill -9` of the supervisor and of workers changes none."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from modyn.supervisor.client import EvaluateStep, RunState, SelectStep, StepState, TrainStep
from modyn.supervisor.journal.run_events import StepDetail
from modyn.testing.stack import RunningStack, tiny_evaluation, tiny_training
from tests.support.comparison import differences, outcome
from tests.support.killed_stack import KilledStack, trigger_set_keys

pytestmark = pytest.mark.timeout(600)

NUM_SAMPLES, NUM_TRIGGERS, DAYS = 400, 5, 4
RATIOS = (30, 50, 80)
VALUES = [0.5, 0.8]


@pytest.fixture(scope="module")
def killed(own_stack: Callable[..., RunningStack]) -> Iterator[KilledStack]:
    stack = own_stack()
    stack.tiny_dataset("train", NUM_SAMPLES, DAYS)
    stack.tiny_dataset("test", 120, DAYS)
    with stack.client() as client:
        yield KilledStack(stack, client)


def start(killed: KilledStack) -> str:
    """Start a run of five trainings, each model evaluated on four days."""
    path = killed.stack.pipeline_file(
        "train",
        trigger={"id": "DataAmountTrigger", "num_samples": NUM_SAMPLES // NUM_TRIGGERS},
        selection_strategy={
            "name": "CoresetStrategy",
            "maximum_keys_in_memory": 40,
            "tail_triggers": 0,
            "downsampling_list": [{"strategy": "Loss", "ratio": ratio, "sample_then_batch": True} for ratio in RATIOS],
            "downsampling_thresholds": {"values": VALUES},
        },
        training=tiny_training(
            epochs_per_trigger=10,
            shuffle=True,
            checkpointing={"activated": True, "interval": 10},
            optimizers=[{"name": "default", "algorithm": "Adam", "param_groups": [{"module": "model", "config": {"lr": 0.002}}]}],
        ),
        evaluation=tiny_evaluation("test", days=DAYS),
    )
    return killed.client.run(path).run_id


def wait_for(killed: KilledStack, run_id: str, trigger_id: int, step: type[StepDetail]) -> None:
    """Wait until a step of a trigger has begun."""
    for event in killed.client.watch(run_id):
        detail = event.detail
        if event.trigger_id == trigger_id and isinstance(detail, step) and detail.state is StepState.STARTED:
            return


def resume(killed: KilledStack, run_id: str) -> None:
    """Resume a run whose supervisor was killed. It must have been under way."""
    run = killed.client.wait(run_id)
    assert run.state is RunState.INTERRUPTED, f"{run.state}: {run.error}"
    killed.client.resume(run_id)


@pytest.mark.slow
def test_kills_change_no_turn_and_no_key(killed: KilledStack) -> None:
    """The supervisor dies before a score decides, while one is computed, and after it has decided; workers while they train and evaluate."""
    client = killed.client
    undisturbed = start(killed)
    assert client.wait(undisturbed).state is RunState.FINISHED, client.show(undisturbed).error
    disturbed = start(killed)
    for trigger_id, step in ((0, EvaluateStep), (1, SelectStep), (2, TrainStep)):
        wait_for(killed, disturbed, trigger_id, step)
        killed.kill("supervisor")
        resume(killed, disturbed)
    wait_for(killed, disturbed, 3, TrainStep)
    killed.kill_workers("trainer_server")
    wait_for(killed, disturbed, 3, EvaluateStep)
    killed.kill_workers("evaluator")
    assert client.wait(disturbed).state is RunState.FINISHED, client.show(disturbed).error
    triggers = [client.supervisor.triggers(run_id) for run_id in (undisturbed, disturbed)]
    expected, found = ([(t.downsampling_turn, t.downsampling_score) for t in of_run] for of_run in triggers)
    assert found == expected
    assert expected[0] == (0, None)
    assert [turn for turn, _ in expected[1:]] == [
        sum(score >= value for value in VALUES) for _, score in expected[1:] if score is not None
    ]
    assert len({turn for turn, _ in expected}) > 1
    assert differences(outcome(client, undisturbed), outcome(client, disturbed)) == []
    for trigger_id, (turn, _) in enumerate(expected):
        keys = [trigger_set_keys(client, run_id, trigger_id) for run_id in (undisturbed, disturbed)]
        assert keys[0] == keys[1]
        record = triggers[1][trigger_id].training_result.downsampling
        assert turn is not None
        assert record is not None
        assert record.num_chosen == 10 * NUM_SAMPLES // NUM_TRIGGERS * RATIOS[turn] // 100
    table = client.selections(disturbed)
    assert table["downsampling_turn"].to_list() == [turn for turn, _ in expected]
    assert table["downsampling_score"].dropna().to_list() == [score for _, score in expected if score is not None]
