"""Proactive training on real services: what each step is made of, what it comes to, and `kill -9` in the middle of it.

What the weights and errors must be is computed here by PyTorch alone, from the samples as they were written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from modyn.client import Client
from modyn.supervisor.client import Run, RunState, TriggerRecord
from modyn.testing.stack import RECORD, TINY_PARSER, RunningStack, tiny_pipeline, tiny_training
from modyn.trainer_server.disk.state_file import read_state_file
from tests.support.comparison import differences, outcome
from tests.support.killed_stack import WORKERS, KilledStack, trigger_set_keys

NUM_SAMPLES, INITIAL, STEP, DRAWN = 205, 60, 10, 6
LEARNING_RATE = 0.1

ONLINE: dict[str, Any] = {
    "trigger": {"id": "DataAmountTrigger", "num_samples": 40},
    "step_samples": STEP,
    "history_samples": DRAWN,
    "learning_rate": {"rule": "inverse_scaling", "power": 0.5},
}


USUAL = {"id": "ThresholdDecisionCriterion", "threshold": 0.2}


def by_accuracy(interval: int, least: float) -> dict[str, Any]:
    """Return a policy that checks at this interval, and fires if the accuracy of its newest model is less."""
    criterion = {"id": "StaticPerformanceThresholdCriterion", "metric": "Accuracy", "metric_threshold": least}
    dataset = {"dataset_id": "stream", "bytes_parser_function": TINY_PARSER, "batch_size": 64, "metrics": [{"name": "Accuracy"}]}
    return {
        "id": "PerformanceTrigger",
        "evaluation_interval_data_points": interval,
        "evaluation": {"dataset": dataset},
        "decision_criteria": {"enough": criterion},
    }


def by_drift(interval: int) -> dict[str, Any]:
    """Return a policy that compares embeddings of its newest model."""
    windows = {"id": "AmountWindowingStrategy", "amount_ref": 40, "amount_cur": 20}
    metrics = {"mmd": {"id": "MMDDriftMetric", "decision_criterion": {"id": "ThresholdDecisionCriterion", "threshold": 0.02}}}
    every = {"evaluation_interval_data_points": interval}
    return {"id": "DataDriftTrigger", **every, "windowing_strategy": windows, "metrics": metrics}


def pipeline(learning_rate: float = LEARNING_RATE, **sections: Any) -> str:
    optimizer = {
        "name": "default",
        "algorithm": "Adagrad",
        "param_groups": [{"module": "model", "config": {"lr": learning_rate}}],
    }
    whole = {
        "trigger": {"id": "InitialTrigger", "num_samples": INITIAL},
        "selection_strategy": {"name": "NewDataStrategy", "maximum_keys_in_memory": 25},
        "training": tiny_training(optimizers=[optimizer], use_previous_model=False, shuffle=True),
        "online": ONLINE,
    }
    return tiny_pipeline("stream", **{**whole, **sections})


@dataclass
class Stream:
    """The samples by key: features and labels."""

    stack: RunningStack
    features: torch.Tensor
    labels: torch.Tensor

    def run(self, text: str, **options: Any) -> tuple[Run, list[TriggerRecord], dict[int, list[int]]]:
        """A run to its end, its triggers and the keys of their sets."""
        run = self.stack.run(text, final_trigger=True, **options)
        assert run.state is RunState.FINISHED, run.error
        with self.stack.client() as client:
            triggers = client.supervisor.triggers(run.run_id)
            return run, list(triggers), {t.trigger_id: trigger_set_keys(client, run.run_id, t.trigger_id) for t in triggers}


@pytest.fixture(scope="module")
def stream(running_stack: RunningStack) -> Stream:
    folder = running_stack.tiny_dataset("stream", NUM_SAMPLES, 5)
    records = np.concatenate([np.fromfile(path, RECORD) for path in sorted(folder.iterdir())])
    return Stream(running_stack, torch.from_numpy(records["features"].copy()), torch.from_numpy(records["label"].copy()))


def steps_of(keys: list[int]) -> list[tuple[list[int], list[int]]]:
    """New and drawn keys of each step of a trigger set."""
    size = STEP + DRAWN
    steps = [keys[first : first + size] for first in range(0, len(keys), size)]
    return [(step[:-DRAWN], step[-DRAWN:]) for step in steps]


def test_steps_continue_from_the_initial_model_with_every_sample_once(stream: Stream) -> None:
    run, triggers, sets = stream.run(pipeline())
    assert [(t.position, t.online) for t in triggers] == [
        (60, False),
        (80, True),
        (120, True),
        (160, True),
        (200, True),
        (205, True),
    ]
    assert [t.parent_model_id for t in triggers[1:]] == [t.model_id for t in triggers[:-1]]
    assert sorted(sets[0]) == list(range(INITIAL))
    done, steps_before = INITIAL, 0
    for trigger in triggers[1:]:
        steps = steps_of(sets[trigger.trigger_id])
        assert [key for new, _ in steps for key in new] == list(range(done, trigger.position))
        for new, drawn in steps:
            assert len(set(drawn)) == DRAWN
            assert max(drawn) < min(new)
        found = trigger.training_result.prequential
        assert found is not None
        assert found.first_step == steps_before + 1
        assert found.num == tuple(len(new) for new, _ in steps)
        done, steps_before = trigger.position, steps_before + len(steps)
    assert run.message == ""


def test_weights_and_errors_are_those_of_pytorch(stream: Stream, tmp_path: Path) -> None:
    """The optimizer's state and the learning rates live on from version to version."""
    text = pipeline(online={**ONLINE, "history": {"strategy": "Window", "num_samples": 30}})
    _, triggers, sets = stream.run(text)
    # Model storage keeps the state of the newest model of a run: the initial training is repeated, alone.
    initial = stream.run(text, max_triggers=1)[1][0]
    assert initial.weights_sha256 == triggers[0].weights_sha256
    with stream.stack.client() as client:
        models = [client.load_model(trigger.model_id or 0) for trigger in triggers]
        client.model_storage.get_optimizers(initial.model_id or 0, tmp_path / "state")
    model = models[0].train()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=LEARNING_RATE)
    optimizer.load_state_dict(read_state_file(tmp_path / "state")["optimizers"]["default"])
    step = 0
    for trigger, expected in zip(triggers[1:], models[1:], strict=True):
        losses, errors = [], []
        for new, drawn in steps_of(sets[trigger.trigger_id]):
            step += 1
            optimizer.param_groups[0]["lr"] = LEARNING_RATE / step**0.5
            keys = torch.tensor(new + drawn)
            output, labels = model(stream.features[keys]), stream.labels[keys]
            each = nn.functional.cross_entropy(output, labels, reduction="none")
            losses.append(float(each[: len(new)].detach().sum()))
            errors.append(int((output.argmax(1) != labels)[: len(new)].sum()))
            optimizer.zero_grad()
            each.mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        found = trigger.training_result.prequential
        assert found is not None
        assert found.loss == pytest.approx(losses, rel=1e-5)
        assert found.errors == tuple(errors)
        for ours, theirs in zip(expected.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_online_updates_and_steps_are_those_of_pytorch(stream: Stream) -> None:
    """Each new sample is tested and learned from once, in updates; steps in between learn from drawn samples, the newest among them."""
    update = 4
    online = {**ONLINE, "update_samples": update, "history": {"strategy": "Window", "num_samples": 12}}
    text = pipeline(
        online=online,
        training={
            **yaml.safe_load(pipeline())["training"],
            "optimizers": [
                {"name": "default", "algorithm": "SGD", "param_groups": [{"module": "model", "config": {"lr": LEARNING_RATE}}]}
            ],
        },
    )
    _, triggers, sets = stream.run(text)
    with stream.stack.client() as client:
        models = [client.load_model(trigger.model_id or 0) for trigger in triggers]
    model, step, done = models[0].train(), 0, INITIAL
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for trigger, expected in zip(triggers[1:], models[1:], strict=True):
        losses, errors, counts = [], [], []
        for new, drawn in steps_of(sets[trigger.trigger_id]):
            assert new == list(range(done, done + len(new)))
            done += len(new)
            assert max(drawn) < done
            assert min(drawn) >= done - 12
            updates = [new[at : at + update] for at in range(0, len(new), update)]
            for keys in [*updates, drawn]:
                step += 1
                optimizer.param_groups[0]["lr"] = LEARNING_RATE / step**0.5
                output, labels = model(stream.features[keys]), stream.labels[keys]
                loss = nn.functional.cross_entropy(output, labels)
                if keys is not drawn:
                    losses.append(float(loss.detach()) * len(keys))
                    errors.append(int((output.argmax(1) != labels).sum()))
                    counts.append(len(keys))
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        found = trigger.training_result.prequential
        assert found is not None
        assert found.num == tuple(counts)
        assert found.loss == pytest.approx(losses, rel=1e-5)
        assert found.errors == tuple(errors)
        assert found.first_step + trigger.training_result.counts.num_steps == step + 1
        for ours, theirs in zip(expected.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)
    assert done == NUM_SAMPLES


def test_retrainings_come_between_steps_and_start_cold(stream: Stream) -> None:
    """Retrainings select as if there were no steps, and are cold as the section `training` says."""
    trigger = {"id": "DataAmountTrigger", "num_samples": 90}
    selection = {"name": "NewDataStrategy", "maximum_keys_in_memory": 25, "tail_triggers": 0}
    _, triggers, sets = stream.run(pipeline(trigger=trigger, selection_strategy=selection))
    assert [(t.position, t.online) for t in triggers] == [
        (90, False), (120, True), (160, True), (180, False), (200, True), (205, True)
    ]  # fmt: skip
    assert [len(sets[t.trigger_id]) for t in triggers if not t.online] == [90, 90]
    assert triggers[3].parent_model_id is None
    assert triggers[4].parent_model_id == triggers[3].model_id
    assert [t.training_result.prequential.first_step for t in triggers if t.training_result.prequential] == [1, 4, 1, 3]
    retrained = stream.run(pipeline(trigger=trigger, selection_strategy=selection, online=None), max_triggers=2)[1]
    assert [t.keys_checksum for t in retrained] == [t.keys_checksum for t in triggers if not t.online]


def test_bounded_triggers_take_each_sample_once(stream: Stream) -> None:
    run, triggers, sets = stream.run(pipeline(online={**ONLINE, "max_samples": 30}))
    new_keys = [[key for new, _ in steps_of(sets[t.trigger_id]) for key in new] for t in triggers[1:]]
    assert [key for keys in new_keys for key in keys] == list(range(INITIAL, NUM_SAMPLES))
    # 40 come between two checks: ten more wait after each, and the end takes all.
    assert [len(keys) for keys in new_keys] == [20, 30, 30, 30, 30, 5]
    assert [t.position for t in triggers] == [60, 80, 120, 160, 200, 205, 205]
    assert [sum(t.training_result.prequential.num) for t in triggers[1:] if t.training_result.prequential] == [
        len(keys) for keys in new_keys
    ]
    assert run.message == ""


def test_without_history_each_sample_is_trained_on_once(stream: Stream) -> None:
    online = {"trigger": {"id": "TimeTrigger", "every": "1d"}, "step_samples": 1}
    _, triggers, sets = stream.run(pipeline(online=online))
    assert all(t.online for t in triggers[1:])
    assert [key for t in triggers[1:] for key in sets[t.trigger_id]] == list(range(INITIAL, NUM_SAMPLES))
    assert sum(t.training_result.counts.num_steps for t in triggers[1:]) == NUM_SAMPLES - INITIAL


def test_policies_look_at_their_newest_model(stream: Stream) -> None:
    """`online.trigger` at that of either kind, `trigger` at that of the last retraining, also where both decide at one position."""
    online = {**ONLINE, "trigger": by_accuracy(20, 1.0)}
    # So slow that no accuracy is 1.
    run, triggers, _ = stream.run(pipeline(1e-3, trigger=by_accuracy(30, 0.0), online=online))
    fired = [(30, False), *((at, True) for at in range(40, 201, 20)), (205, True)]
    assert [(t.position, t.online) for t in triggers] == fired
    with stream.stack.client() as client:
        checks = [check for check in client.supervisor.checks(run.run_id) if "Accuracy" in check.numbers]
        models = {t.position: client.load_model(t.model_id or 0).eval() for t in triggers}
        table = client.checks(run.run_id)
    assert {(c.position, c.online) for c in checks} == {(at, False) for at in range(60, 205, 30)} | set(fired[1:-1])
    assert table["online"].sum() == sum(check.online for check in client.supervisor.checks(run.run_id))
    for check in checks:
        first = check.position - (20 if check.online else 30)
        made = max(at for at in models if at < check.position) if check.online else 30
        # What a model was trained on is no test of it.
        keys = torch.arange(max(first, made), check.position)
        right = (models[made](stream.features[keys]).argmax(1) == stream.labels[keys]).float().mean()
        assert check.numbers["Accuracy"] == pytest.approx(float(right)), check
        assert check.fires is check.online


@pytest.mark.slow
def test_the_order_of_batches_of_the_stream_changes_nothing(stream: Stream, own_stack: Callable[..., RunningStack]) -> None:
    other = own_stack(supervisor={"stream_batch_size": 7})
    other.tiny_dataset("stream", NUM_SAMPLES, 5)
    for trigger in ({"id": "TimeTrigger", "every": "1d"}, by_drift(15)):
        text, outcomes = pipeline(online={**ONLINE, "trigger": trigger}), []
        for stack in (stream.stack, other):
            run = stack.run(text)
            assert run.state is RunState.FINISHED, run.error
            with stack.client() as client:
                outcomes.append(outcome(client, run.run_id))
        assert len(outcomes[0].triggers) > 3
        assert differences(*outcomes) == []


def test_what_is_wrong_in_the_section_is_said_by_its_owner(stream: Stream) -> None:
    unknown = {**by_drift(10), "metrics": {"d": {"id": "MMDrift", "decision_criterion": USUAL}}}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"step_samples": 0}, "online.step_samples: 0 is wrong"),
        ({"trigger": {"id": "PerformanceTriger"}}, "online.trigger.id: there is no trigger 'PerformanceTriger', did you mean"),
        ({"history": {"strategy": "Uniformly"}}, "online.history.strategy: there is no history sampling 'Uniformly'"),
        ({"trigger": unknown}, "online.trigger.metrics.d.id: there is no drift metric 'MMDrift'"),
    ]
    with stream.stack.client() as client:
        for wrong, said in cases:
            path = stream.stack.pipeline_file("stream", **yaml.safe_load(pipeline(online={**ONLINE, **wrong})))
            problems = [str(problem) for problem in client.check(path)]
            assert any(said in problem for problem in problems), problems


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("update_samples", [None, 3])
def test_kills_in_the_middle_of_steps_change_nothing(own_stack: Callable[..., RunningStack], update_samples: int | None) -> None:
    """`kill -9` of workers, services and the supervisor: every sample is a new one of one step, errors and weights are those of the run that was left
    alone."""
    stack = own_stack(trainer_server={"session_idle_s": 1.0})
    stack.tiny_dataset("stream", 2000, 5)
    online = {**ONLINE, "trigger": {"id": "DataAmountTrigger", "num_samples": 150}, "update_samples": update_samples}
    training = {**yaml.safe_load(pipeline())["training"], "checkpointing": {"activated": True, "interval": 3}}
    path = stack.pipeline_file("stream", **yaml.safe_load(pipeline(online=online, training=training)))

    def errors(client: Client, run_id: str) -> list[Any]:
        return [trigger.training_result.prequential for trigger in client.supervisor.triggers(run_id)]

    with stack.client() as client:
        expected = client.wait(client.run(path).run_id)
        assert expected.state is RunState.FINISHED, expected.error
        names = (WORKERS, WORKERS, "trainer_server", "selector", "storage", "model_storage", "supervisor")
        for run_id in KilledStack(stack, client).runs_under_kills(path, names, num_kills=12, seed=13):
            assert differences(outcome(client, expected.run_id), outcome(client, run_id)) == []
            assert errors(client, run_id) == errors(client, expected.run_id)
