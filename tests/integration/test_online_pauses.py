"""Steps that pause while the error is flat, on real services: what is tested and trained on, and that kills change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from modyn.client import Client
from modyn.supervisor.client import RunState, StepState, TrainStep, TriggerFired
from modyn.testing.stack import RunningStack, tiny_pipeline, tiny_training
from tests.support.comparison import differences, outcome
from tests.support.killed_stack import WORKERS, KilledStack, trigger_set_keys
from tests.support.runs import messages_of
from tests.support.shifting_data import SAMPLES_A_DAY, shifting_dataset

NUM_DAYS, SHIFT_DAY, INITIAL, PER_TRIGGER = 20, 12, 200, 100

ONLINE: dict[str, Any] = {
    "trigger": {"id": "DataAmountTrigger", "num_samples": PER_TRIGGER},
    "step_samples": 10,
    "history_samples": 5,
    "convergence": {"window": 300, "tolerance": 0.3},
}


def pipeline(**sections: Any) -> str:
    whole = {
        "trigger": {"id": "InitialTrigger", "num_samples": INITIAL},
        "training": tiny_training(use_previous_model=False, epochs_per_trigger=5),
        "online": ONLINE,
    }
    return tiny_pipeline("shifting", **{**whole, **sections})


def test_steps_pause_and_start_again(running_stack: RunningStack) -> None:
    shifting_dataset(running_stack, "shifting", NUM_DAYS, SHIFT_DAY)
    run = running_stack.run(pipeline())
    assert run.state is RunState.FINISHED, run.error
    with running_stack.client() as client:
        triggers = client.supervisor.triggers(run.run_id)
        table = client.prequential(run.run_id)
        sets = [trigger_set_keys(client, run.run_id, t.trigger_id) for t in triggers]
        events = list(client.watch(run.run_id))
    states = [(t.position, str(t.state)) for t in triggers if t.online]
    shift = SHIFT_DAY * SAMPLES_A_DAY
    paused = [position for position, state in states if state == "tested"]
    # The error is flat before the shift; tests after it make steps start again, until it is flat again.
    assert {p for p in paused if p <= shift} == set(range(paused[0], shift + 1, PER_TRIGGER))
    assert len([p for p in paused if p <= shift]) >= 3
    assert dict(states)[shift + PER_TRIGGER] == "tested"
    assert dict(states)[shift + 2 * PER_TRIGGER] == "trained"
    # Each sample is tested once, trained on or not; samples that are only tested have no history with them.
    assert table["tested"].iloc[-1] == NUM_DAYS * SAMPLES_A_DAY - INITIAL
    assert table["error"].notna().all()
    done = INITIAL
    for trigger, keys in zip(triggers[1:], sets[1:], strict=True):
        if str(trigger.state) == "tested":
            assert keys == list(range(done, trigger.position))
            assert trigger.model_id is None
            assert trigger.num_trained is None
        else:
            assert len(keys) == PER_TRIGGER + 5 * PER_TRIGGER // 10
        done = trigger.position
    # What was tested alone is history of the steps that come.
    later = next(keys for t, keys in zip(triggers, sets, strict=True) if t.position == shift + 2 * PER_TRIGGER)
    assert set(later) & set(range(paused[0] - PER_TRIGGER, shift))
    # A version continues from the newest one before it, and from its count of steps.
    trained = [t for t in triggers if t.model_id is not None]
    assert [t.parent_model_id for t in trained[1:]] == [t.model_id for t in trained[:-1]]
    firsts = [t.training_result.prequential.first_step for t in trained[1:] if t.training_result.prequential]
    assert firsts == [1 + 10 * number for number in range(len(trained) - 1)]
    said = messages_of(events)
    assert [message.partition(":")[0] for message in said][:2] == ["steps pause", "steps start again"]
    ends = [event.detail for event in events if isinstance(event.detail, TrainStep) and event.detail.state is StepState.FINISHED]
    assert [step.tested for step in ends] == [0] + [PER_TRIGGER] * (len(triggers) - 1)
    assert [event.detail.online for event in events if isinstance(event.detail, TriggerFired)] == [t.online for t in triggers]


def test_online_updates_between_steps_pause_too(running_stack: RunningStack) -> None:
    shifting_dataset(running_stack, "updates", NUM_DAYS, SHIFT_DAY)
    text = pipeline(online={**ONLINE, "update_samples": 5, "rollback": {"every": 4}}).replace("shifting", "updates")
    run = running_stack.run(text)
    assert run.state is RunState.FINISHED, run.error
    with running_stack.client() as client:
        triggers, table = client.supervisor.triggers(run.run_id), client.prequential(run.run_id)
    assert {str(t.state) for t in triggers} == {"trained", "tested"}
    assert table["tested"].iloc[-1] == NUM_DAYS * SAMPLES_A_DAY - INITIAL


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kills_change_no_decision(own_stack: Callable[..., RunningStack]) -> None:
    stack = own_stack(trainer_server={"session_idle_s": 1.0})
    shifting_dataset(stack, "shifting", NUM_DAYS, SHIFT_DAY, spoilt=range(335, 336))
    training = {**yaml.safe_load(pipeline())["training"], "checkpointing": {"activated": True, "interval": 3}}
    online = {**ONLINE, "rollback": {"every": 3}}
    path = stack.pipeline_file("shifting", **yaml.safe_load(pipeline(training=training, online=online)))

    def errors(client: Client, run_id: str) -> list[str]:
        """Return errors as text: NaN is not equal to itself."""
        results = [trigger.training_result for trigger in client.supervisor.triggers(run_id)]
        return [repr((result.prequential, result.step_guard)) for result in results]

    with stack.client() as client:
        expected = client.wait(client.run(path).run_id)
        assert expected.state is RunState.FINISHED, expected.error
        assert {str(t.state) for t in client.supervisor.triggers(expected.run_id)} == {"trained", "tested"}
        assert any(trigger.training_result.rollbacks for trigger in client.supervisor.triggers(expected.run_id))
        names = (WORKERS, "supervisor", "trainer_server", WORKERS, "selector")
        for run_id in KilledStack(stack, client).runs_under_kills(path, names, num_kills=8, seed=5):
            assert differences(outcome(client, expected.run_id), outcome(client, run_id)) == []
            assert errors(client, run_id) == errors(client, expected.run_id)
