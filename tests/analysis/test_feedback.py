"""Scores of trainings, as tables and as printed by `modyn show --scores`."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from modyn.analysis.feedback import feedback_summary, feedback_table
from modyn.cli.main import app
from modyn.cli.views.run_tables import print_score_summary, print_scores
from modyn.client import Client
from modyn.errors import NotFoundError
from modyn.records import FeedbackHeader, FeedbackRows, RunId, RunRegistration, SampleBatch
from modyn.selector.client import SelectorClient
from modyn.testing.fake_selector import FakeSelectorClient

RUN = RunId("r-1")


@pytest.fixture
def selector() -> SelectorClient:
    """Two triggers of five samples: one training kept losses in two epochs and gradients in the last, the other saw none."""
    fake = cast("SelectorClient", FakeSelectorClient())
    fake.register_run(RunRegistration(RUN, "d", {"name": "NewDataStrategy", "maximum_keys_in_memory": 4, "keep_scores": True}, 1))
    fake.inform(RUN, 0, SampleBatch(np.arange(10), np.arange(10), np.arange(10)))
    for trigger_id in range(2):
        fake.trigger(RUN, trigger_id, 5 * trigger_id + 5)
    keys = np.array([3, 1, 0, 2, 4] * 2)
    loss = np.array([5, 1, 2, 3, 4, 0.5, 0.25, 1, np.nan, 2], np.float32)[:, None]
    gradients = np.where(np.arange(10)[:, None] < 5, np.nan, keys[:, None] * [1.0, 10.0]).astype(np.float32)
    rows = FeedbackRows(keys, np.repeat(np.arange(2, dtype=np.int32), 5), {"loss": loss, "gradient_2": gradients})
    widths = {"gradient_2": 2, "loss": 1}
    fake.put_feedback(FeedbackHeader(RUN, 0, fake.trigger_set(RUN, 0).keys_checksum, 1, 10, widths), lambda: [rows])
    fake.put_feedback(FeedbackHeader(RUN, 1, fake.trigger_set(RUN, 1).keys_checksum, 1, 0, widths), list)
    return fake


def test_a_row_for_each_sample_and_epoch_in_the_order_of_the_training(selector: SelectorClient) -> None:
    table = feedback_table(selector, RUN)
    assert set(table.columns) == {"trigger_id", "epoch", "key", "loss", "gradient_2.0", "gradient_2.1"}
    assert table["key"].to_list() == [3, 1, 0, 2, 4] * 2
    assert table["epoch"].to_list() == [0] * 5 + [1] * 5
    assert table["loss"].to_list()[:8] == [5, 1, 2, 3, 4, 0.5, 0.25, 1]
    assert table["gradient_2.1"].to_list()[5:] == [30, 10, 0, 20, 40]
    assert table["trigger_id"].dtype == np.int64
    pd.testing.assert_frame_equal(table, feedback_table(selector, RUN, 0))
    assert feedback_table(selector, RUN, 1).empty


def test_a_trigger_without_scores_is_named(selector: SelectorClient) -> None:
    with pytest.raises(NotFoundError, match=r"trigger 7 of run 'r-1' has sent no scores: set selection_strategy\.keep_scores"):
        feedback_table(selector, RUN, 7)
    with pytest.raises(NotFoundError):
        feedback_table(selector, "other-1")


def test_the_summary_counts_what_is_known(selector: SelectorClient) -> None:
    table = feedback_summary(selector, RUN)
    assert table[["trigger_id", "epoch", "score", "num_samples"]].to_numpy().tolist() == [[0, 0, "loss", 5], [0, 1, "loss", 4]]
    assert table[["mean", "least", "median", "greatest"]].to_numpy().tolist() == [[3, 1, 3, 5], [0.9375, 0.25, 0.75, 2]]


def test_the_summary_holds_one_epoch_at_a_time(selector: SelectorClient) -> None:
    """Memory holds a chunk of 65,536 rows and an epoch of 10,000, not all forty epochs (34 MB), even if chunks and epochs end at different rows."""
    keys = np.arange(10_000)
    widths = {"gradient_16": 16, "loss": 1}

    def epochs() -> Iterator[FeedbackRows]:
        for epoch in range(40):
            scores = {"gradient_16": np.zeros((len(keys), 16), np.float32), "loss": (keys + epoch)[:, None].astype(np.float32)}
            yield FeedbackRows(keys, np.full(len(keys), epoch, np.int32), scores)

    selector.put_feedback(FeedbackHeader(RUN, 1, selector.trigger_set(RUN, 1).keys_checksum, 2, 400_000, widths), epochs)
    tracemalloc.start()
    try:
        table = feedback_summary(selector, RUN)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 20e6
    of_second = table[table["trigger_id"] == 1]
    assert of_second["epoch"].to_list() == list(range(40))
    assert of_second["median"].to_list() == [4999.5 + epoch for epoch in range(40)]
    assert set(of_second["num_samples"]) == {10_000}


def test_what_is_printed(selector: SelectorClient, capsys: pytest.CaptureFixture[str]) -> None:
    shown = SimpleNamespace(selector=selector, feedback=lambda run_id, trigger_id: feedback_table(selector, run_id, trigger_id))
    client = cast("Client", shown)
    print_score_summary(client, RUN)
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[:4] for line in lines[1:]] == [["0", "0", "loss", "5"], ["0", "1", "loss", "4"]]
    print_scores(client, RUN, 0)
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines() if "\t" in line]
    assert lines[0] == ["key", "epoch", "loss"]
    assert [line[0] for line in lines[1:]] == ["4", "0", "3", "1", "2"]


def test_epochs_are_counted_and_not_their_scores(selector: SelectorClient, capsys: pytest.CaptureFixture[str]) -> None:
    def epochs() -> Iterator[FeedbackRows]:
        for epoch in range(60):
            scores = {name: np.ones((1, 1), np.float32) for name in ("entropy", "loss")}
            yield FeedbackRows(np.zeros(1, np.int64), np.full(1, epoch, np.int32), scores)

    checksum = selector.trigger_set(RUN, 1).keys_checksum
    selector.put_feedback(FeedbackHeader(RUN, 1, checksum, 2, 60, {"entropy": 1, "loss": 1}), epochs)
    print_score_summary(cast("Client", SimpleNamespace(selector=selector)), RUN)
    shown = capsys.readouterr().out
    assert "the newest 50 of 62 epochs" in shown  # two of them of the trigger before
    assert len([line for line in shown.splitlines() if "\t" in line]) == 1 + 2 * 50


@pytest.mark.parametrize(
    ("arguments", "message"), [(["--trigger", "1"], "needs --scores"), (["--scores", "--checks"], "give only one of them")]
)
def test_options_that_do_not_go_together_are_refused(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["show", "digits-0001", *arguments])
    assert result.exit_code == 2
    assert message in result.output
