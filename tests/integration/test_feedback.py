"""Scores of trained samples on their way from the training to the next selection, with real services that are killed with `kill -9`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

from modyn.client import Client
from modyn.errors import NotFoundError
from modyn.records import RunId
from modyn.selector.client import SelectorClient
from modyn.supervisor.client import RunState, StepState, TrainStep
from modyn.testing.stack import RunningStack, tiny_pipeline, tiny_training
from tests.support.comparison import differences, outcome
from tests.support.killed_stack import KilledStack, trigger_set_keys

NUM_SAMPLES, NUM_TRIGGERS, EPOCHS = 400, 4, 20

pytestmark = pytest.mark.timeout(600)


def pipeline(strategy: str) -> str:
    """Four trainings with checkpoints, each of which needs the scores of the one before to select."""
    return tiny_pipeline(
        "train",
        pipeline={"name": f"feedback-{strategy.lower()}"},
        trigger={"id": "DataAmountTrigger", "num_samples": NUM_SAMPLES // NUM_TRIGGERS},
        selection_strategy={
            "name": "CoresetStrategy",
            "maximum_keys_in_memory": 40,
            "keep_scores": True,
            "presampling_config": {"strategy": strategy, "buffer_size": 60},
        },
        training=tiny_training(
            epochs_per_trigger=EPOCHS,
            seed=5,
            shuffle=True,
            checkpointing={"activated": True, "interval": 3},
            drop_last_batch=False,
        ),
    )


@pytest.fixture(scope="module")
def installation(own_stack: Callable[..., RunningStack]) -> Iterator[KilledStack]:
    stack = own_stack()
    stack.tiny_dataset("train", NUM_SAMPLES, 4)
    with stack.client() as client:
        yield KilledStack(stack, client)


def start(installation: KilledStack, strategy: str) -> str:
    path = installation.stack.folder / "pipeline.yaml"
    path.write_text(pipeline(strategy))
    return installation.client.run(path).run_id


def scores_by_trigger(client: Client, run_id: str) -> list[pd.DataFrame]:
    return [client.feedback(run_id, trigger_id) for trigger_id in range(NUM_TRIGGERS)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", ["CLiB", "GSS"])
def test_a_run_whose_services_are_killed_selects_and_keeps_the_same(installation: KilledStack, strategy: str) -> None:
    client = installation.client
    undisturbed = client.wait(start(installation, strategy)).run_id
    run_id = start(installation, strategy)
    to_kill = {0: "selector", 1: "trainer_server", 2: "selector", 3: "trainer_server"}
    for event in client.watch(run_id):
        begun = isinstance(event.detail, TrainStep) and event.detail.state is StepState.STARTED
        if (begun or event.kind == "training_progress") and event.trigger_id in to_kill:
            installation.kill(to_kill.pop(event.trigger_id))
    assert to_kill == {}
    run = client.show(run_id)
    assert run.state is RunState.FINISHED, run.error
    assert differences(outcome(client, undisturbed), outcome(client, run_id)) == []

    expected, found = (scores_by_trigger(client, each) for each in (undisturbed, run_id))
    for trigger_id, (before, after) in enumerate(zip(expected, found, strict=True)):
        pd.testing.assert_frame_equal(before, after)
        keys = sorted(trigger_set_keys(client, run_id, trigger_id))
        for epoch in range(EPOCHS):
            assert sorted(after[after["epoch"] == epoch]["key"]) == keys
        assert np.isfinite(after["loss"]).all()
    assert not list((client.config.state_dir / "trainer_server" / "feedback").glob(f"{run_id}.*"))


@pytest.mark.slow
def test_scores_are_shown_and_go_with_their_run(installation: KilledStack) -> None:
    client, stack = installation.client, installation.stack
    run_id = client.wait(start(installation, "Reservoir")).run_id
    shown = stack.modyn("show", run_id, "--scores")
    assert shown.returncode == 0, shown.stderr
    lines = [line.split("\t") for line in shown.stdout.splitlines() if "\t" in line]
    assert f"the newest 50 of {NUM_TRIGGERS * EPOCHS} epochs" in shown.stdout
    assert len(lines) == 1 + 50
    assert lines[-1][:4] == ["3", "19", "loss", "60"]
    rows: list[dict[str, Any]] = json.loads(stack.modyn("show", run_id, "--scores", "--trigger", "1", "--json").stdout)
    assert len(rows) == EPOCHS * 60
    wrong = stack.modyn("show", run_id, "--scores", "--trigger", "9")
    assert wrong.returncode != 0
    assert "has sent no scores" in wrong.stderr
    folders = list((client.config.state_dir / "selector" / "runs").glob(f"{run_id}.*"))
    assert len(folders) == 1
    client.remove(run_id)
    assert not folders[0].exists()
    with SelectorClient(client.config.endpoint("selector")) as selector, pytest.raises(NotFoundError):
        selector.feedback_headers(RunId(run_id))
