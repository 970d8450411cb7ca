"""What `modyn data` decides by itself."""

from __future__ import annotations

import pytest

from modyn.cli.data import cost_of_deletion
from modyn.errors import ConflictError
from modyn.records import RunId
from modyn.supervisor.records import Run, RunMode
from modyn.supervisor.states import RunState


def run(name: str, state: RunState, dataset: str, *evaluated: str) -> Run:
    pipeline = {"data": {"dataset_id": dataset}, "evaluation": {"datasets": [{"dataset_id": other} for other in evaluated]}}
    return Run(RunId(name), "p", RunMode.EXPERIMENT, state, 0.0, pipeline=pipeline)


def test_a_run_names_the_datasets_that_it_reads() -> None:
    assert run("a-1", RunState.FINISHED, "train", "test", "train").datasets == {"train", "test"}
    assert Run(RunId("b-1"), "p", RunMode.EXPERIMENT, RunState.FAILED, 0.0).datasets == frozenset()


def test_a_dataset_that_runs_read_is_not_deleted_unasked() -> None:
    runs = [
        run("done-1", RunState.FINISHED, "train"),
        run("down-1", RunState.INTERRUPTED, "train"),
        run("down-2", RunState.FAILED, "train"),
        run("down-3", RunState.FAILED, "other", "train"),
        run("other-1", RunState.TRAINING, "other"),
    ]
    assert cost_of_deletion("train", runs) == (
        "down-1, down-2 cannot be resumed then; down-3 can be resumed and train on, but evaluations on train fail then: "
        "a dataset that is registered under the name train later is another one"
    )
    assert cost_of_deletion("train", runs[3:4]).startswith("down-3 can be resumed and train on")
    assert cost_of_deletion("unread", runs) == ""
    with pytest.raises(ConflictError, match="dataset 'other' is read by other-1; stop them first"):
        cost_of_deletion("other", runs)
