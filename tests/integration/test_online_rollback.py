"""Steps that diverge, on real services: what is undone, what is said of it, and that every sample is tested."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from modyn.records import RunId
from modyn.supervisor.client import RunState, TriggerRecord
from modyn.testing.stack import RunningStack, tiny_pipeline, tiny_training
from tests.support.runs import messages_of
from tests.support.shifting_data import SAMPLES_A_DAY, shifting_dataset

NUM_DAYS, INITIAL = 6, 100
ONLINE: dict[str, Any] = {"trigger": {"id": "DataAmountTrigger", "num_samples": 100}, "step_samples": 10}


def pipeline(dataset: str, online: dict[str, Any], **training: Any) -> str:
    return tiny_pipeline(
        dataset,
        trigger={"id": "InitialTrigger", "num_samples": INITIAL},
        training=tiny_training(use_previous_model=False, **training),
        online={**ONLINE, **online},
    )


def run_on(
    stack: RunningStack, dataset: str, spoilt: range, online: dict[str, Any], **training: Any
) -> tuple[RunId, list[TriggerRecord], list[str], Any]:
    """The run, its triggers, messages, and the table of what was tested."""
    shifting_dataset(stack, dataset, NUM_DAYS, NUM_DAYS, spoilt)
    run = stack.run(pipeline(dataset, online, **training))
    assert run.state is RunState.FINISHED, run.error
    with stack.client() as client:
        said = messages_of(client.watch(run.run_id))
        return run.run_id, list(client.supervisor.triggers(run.run_id)), said, client.prequential(run.run_id)


def test_steps_resume_from_their_snapshot(running_stack: RunningStack, tmp_path: Path) -> None:
    run_id, triggers, said, table = run_on(running_stack, "spoilt", range(253, 254), {"rollback": {"every": 2}})
    assert all(trigger.model_id is not None for trigger in triggers)
    assert [len(t.training_result.rollbacks) for t in triggers] == [0, 0, 1, 0, 0, 0]
    # Sample 253 is in step 16 of the stream, counted from 1; its check undoes the steps after the snapshot.
    assert said[0].startswith("trigger 2: after step 16 the error had jumped to a loss of nan, against ")
    assert said[0].endswith("before: steps resume from the weights of step 14")
    assert table["tested"].iloc[-1] == NUM_DAYS * SAMPLES_A_DAY - INITIAL
    assert table["error"].notna().all()
    assert table["cumulated_loss"].notna().all()
    assert table["loss"].isna().sum() == 1
    with running_stack.client() as client:
        page = client.report(run_id, tmp_path / "report.html").read_text()
    assert "Training over time" in page


@pytest.mark.parametrize("guarded", [True, False])
def test_what_is_left_out_is_tested_all_the_same(running_stack: RunningStack, guarded: bool) -> None:
    options = {"rollback": {"every": 2}} if guarded else {}
    name = "spoilt-twice" if guarded else "spoilt-unguarded"
    spoilt = range(213, 284, 70)  # 213 and 283
    run_id, triggers, said, table = run_on(running_stack, name, spoilt, options, on_divergence="keep_previous")
    assert [str(t.state) for t in triggers] == ["trained", "trained", "untrained", "trained", "trained", "trained"]
    assert triggers[3].parent_model_id == triggers[1].model_id
    # What is left out is in no store: a server that follows the newest version cannot find it.
    with running_stack.client() as client:
        stored = [model.version.trigger_id for model in client.model_storage.list(run_id)]
    assert sorted(stored) == [0, 1, 3, 4, 5]
    assert said[0].startswith(
        "trigger 2 trained nothing: the " + ("error jumped after step 12" if guarded else "training diverged")
    )
    tests, later = (triggers[at].training_result.prequential for at in (2, 3))
    assert tests is not None
    assert later is not None
    # With a guard all are tested; without one, those before the model had no number to say.
    left_out = tests.num
    assert left_out == ((10,) * 10 if guarded else (10,))
    assert len(table) == 40 + len(left_out)
    assert table["tested"].iloc[-1] == 400 + sum(left_out)
    # The next steps continue from the version before, with its count of steps.
    assert later.first_step == 11
    assert all(map(math.isfinite, later.loss))
