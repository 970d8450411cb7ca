"""Decisions of `modyn data`."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from modyn.cli.data import change, cost_of_deletion
from modyn.config.dataset import DatasetConfig
from modyn.errors import ConflictError
from modyn.records import RunId
from modyn.supervisor.journal.records import Run, RunMode
from modyn.supervisor.journal.states import RunState


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
        "down-1, down-2 cannot be resumed afterwards; down-3 can be resumed and continue training, but evaluations on train will fail: "
        "a dataset that is registered later as train counts as a different dataset"
    )
    assert cost_of_deletion("train", runs[3:4]).startswith("down-3 can be resumed and continue training")
    assert cost_of_deletion("unread", runs) == ""
    with pytest.raises(ConflictError, match="dataset 'other' is read by other-1; stop these runs first"):
        cost_of_deletion("other", runs)


@pytest.mark.parametrize(("option", "value"), [("quote=", ""), ("columns=null", None), ("columns=[a, b]", ["a", "b"])])
def test_an_option_without_a_value_is_an_empty_text(option: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"label_index": 0}
    fields = {"name": "d", "base_path": "/d", "file_wrapper": "CsvFileWrapper", "file_wrapper_config": options}
    known, asked = SimpleNamespace(config=DatasetConfig.model_validate(fields)), list[DatasetConfig]()

    def change_dataset(config: DatasetConfig) -> SimpleNamespace:
        asked.append(config)
        return SimpleNamespace(config=config, num_samples=0)

    client = SimpleNamespace(dataset=lambda _: known, change_dataset=change_dataset)
    monkeypatch.setattr("modyn.cli.data.connect", lambda start: nullcontext(client))
    change("d", [option])
    assert asked[0].file_wrapper_config == {**options, option.partition("=")[0]: value}


@pytest.mark.parametrize(("num_samples", "option", "noted"), [(5, "s", True), (5, "%Y", False), (0, "s", False)])
def test_a_change_of_the_format_of_times_names_the_samples_that_keep_theirs(
    num_samples: int, option: str, noted: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"label_index": 0, "timestamp_format": "%Y"}
    fields = {"name": "d", "base_path": "/d", "file_wrapper": "CsvFileWrapper", "file_wrapper_config": options}
    known = SimpleNamespace(config=DatasetConfig.model_validate({**fields, "timestamp_source": "column:1"}))
    client = SimpleNamespace(
        dataset=lambda _: known, change_dataset=lambda config: SimpleNamespace(config=config, num_samples=num_samples)
    )
    monkeypatch.setattr("modyn.cli.data.connect", lambda start: nullcontext(client))
    change("d", [f"timestamp_format={option}"])
    said = "5 indexed samples keep the times that were read with the former timestamp_format"
    assert (said in capsys.readouterr().err) == noted
