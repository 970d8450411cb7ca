"""The samples of a trigger set, with their files and the scores of the training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from modyn.analysis.chosen_samples import ChosenTable, chosen_samples
from modyn.analysis.selection_rows import rows_of
from modyn.cli.views.dataset_views import show_chosen
from modyn.records import FeedbackHeader, FeedbackRows, RunId, RunRegistration, SampleBatch
from modyn.selector.client import SelectorClient
from modyn.testing.fake_selector import FakeSelectorClient
from modyn.testing.fake_storage import FakeStorage
from modyn.trainer_server.client import NO_RESULT, TrainingResult

RUN = RunId("r-1")
TRAINED = TrainingResult.from_mapping({"num_samples": 6})
DOWNSAMPLED = TrainingResult.from_mapping({"downsampling": {"num_chosen": 3, "num_candidates": 6}})


def informed(storage: FakeStorage, labels: Sequence[int] | None = None) -> SelectorClient:
    storage.add_dataset("d")
    storage.add_samples("d", timestamps=range(100, 110), labels=labels)
    selector = cast("SelectorClient", FakeSelectorClient())
    selector.register_run(RunRegistration(RUN, "d", {"name": "NewDataStrategy", "maximum_keys_in_memory": 4, "limit": 6}, 1))
    keys = np.array([sample.key for sample in storage.client().locate("d", np.arange(10))])
    selector.inform(RUN, 0, SampleBatch(keys, np.arange(100, 110), np.arange(10) % 2))
    selector.trigger(RUN, 0, 10)
    return selector


def test_they_come_in_stream_order_over_partitions_up_to_the_limit() -> None:
    storage = FakeStorage()
    selector = informed(storage)
    table = chosen_samples(selector, storage.client(), RUN, 0, TRAINED).table
    assert table["key"].to_list() == [4, 5, 6, 7, 8, 9]
    assert table["timestamp"].to_list() == list(range(104, 110))
    assert chosen_samples(selector, storage.client(), RUN, 0, TRAINED, limit=5).table["key"].to_list() == [4, 5, 6, 7, 8]


def test_a_sample_that_was_deleted_since_has_no_place() -> None:
    storage = FakeStorage()
    selector = informed(storage)
    storage.client().delete_samples("d", np.array([5]))
    table = chosen_samples(selector, storage.client(), RUN, 0, TRAINED).table
    assert table["key"].to_list() == [4, 5, 6, 7, 8, 9]
    assert table["path"].isna().to_list() == [False, True, False, False, False, False]


def test_scores_are_those_of_the_last_epoch_that_saw_the_sample() -> None:
    storage = FakeStorage()
    selector = informed(storage)
    rows = FeedbackRows(
        np.array([4, 6, 6, 4, 99]),
        np.array([0, 0, 1, 1, 1], np.int32),
        {"loss": np.array([[1], [2], [3], [4], [5]], np.float32), "g": np.zeros((5, 2), np.float32)},
    )
    checksum = selector.trigger_set(RUN, 0).keys_checksum
    selector.put_feedback(FeedbackHeader(RUN, 0, checksum, 1, 5, {"loss": 1, "g": 2}), lambda: iter([rows]))
    table = chosen_samples(selector, storage.client(), RUN, 0, TRAINED).table.set_index("key")
    assert table["loss"].dropna().to_dict() == {4: 4.0, 6: 3.0}
    assert {"g.0", "g.1"} <= set(table.columns)


def downsampled(storage: FakeStorage) -> SelectorClient:
    """A trigger set of six samples: 4 and 8 were trained on in the first epoch, and 9, 5 and 6 in the last."""
    selector = informed(storage)
    scores = {
        "downsampling_score": np.array([[1], [2], [3], [np.nan], [5]], np.float32),
        "downsampling_weight": np.array([[1], [1], [0.5], [2], [1.5]], np.float32),
    }
    rows = FeedbackRows(np.array([4, 8, 9, 5, 6]), np.array([0, 0, 1, 1, 1], np.int32), scores)
    header = FeedbackHeader(RUN, 0, selector.trigger_set(RUN, 0).keys_checksum, 1, 5, dict.fromkeys(scores, 1))
    selector.put_feedback(header, lambda: iter([rows.slice(0, 1), rows.slice(1, 4), rows.slice(4, 5)]))
    return selector


def listed(found: ChosenTable, *names: str) -> list[list[Any]]:
    return [[row[name] for name in names] for row in rows_of(found.table)]


def test_what_downsampling_chose_last_is_listed_with_its_scores_and_weights() -> None:
    storage = FakeStorage()
    found = chosen_samples(downsampled(storage), storage.client(), RUN, 0, DOWNSAMPLED)
    names = ("key", "chosen", "downsampling_score", "downsampling_weight")
    assert listed(found, *names) == [[5, True, None, 2.0], [6, True, 5.0, 1.5], [9, True, 3.0, 0.5]]
    assert (found.total, found.note) == (3, "")
    limited = chosen_samples(downsampled(storage := FakeStorage()), storage.client(), RUN, 0, DOWNSAMPLED, 2)
    assert (limited.table["key"].to_list(), limited.total) == ([5, 6], 3)


def test_the_whole_trigger_set_says_what_was_chosen() -> None:
    storage = FakeStorage()
    found = chosen_samples(downsampled(storage), storage.client(), RUN, 0, DOWNSAMPLED, whole_set=True)
    chosen = [[4, False], [5, True], [6, True], [7, False], [8, False], [9, True]]
    assert listed(found, "key", "chosen") == chosen
    assert found.total == 6


@pytest.mark.parametrize(
    ("result", "note"),
    [
        (NO_RESULT, "trigger 0 has no training yet: these are the samples of its trigger set"),
        (
            DOWNSAMPLED,
            "the training of trigger 0 chose 50.0% of its candidates, but did not keep its choice: these are the samples of the trigger set. Set "
            "selection_strategy.keep_scores: true before a run, or sample_then_batch: true",
        ),
        (TRAINED, ""),
    ],
)
def test_what_is_not_known_is_missing_and_said(result: TrainingResult, note: str) -> None:
    storage = FakeStorage()
    found = chosen_samples(informed(storage), storage.client(), RUN, 0, result)
    assert listed(found, "chosen") == [[None if note else True]] * 6
    assert found.note == note


def test_a_cut_is_never_silent(capsys: pytest.CaptureFixture[str]) -> None:
    storage = FakeStorage()
    selector = downsampled(storage)
    show_chosen(chosen_samples(selector, storage.client(), RUN, 0, DOWNSAMPLED, 2), json=False)
    out, err = capsys.readouterr()
    lines = [line.split("\t") for line in out.splitlines()]
    assert lines[0] == ["key", "weight", "timestamp", "label", "path", "downsampling_score", "downsampling_weight"]
    assert [line[-2:] for line in lines[1:]] == [["–", "2"], ["5", "1.5"]]
    assert err == "the first 2 of 3 samples; --limit shows more, --json all\n"
    show_chosen(chosen_samples(selector, storage.client(), RUN, 0, DOWNSAMPLED, 1), json=True)
    out, err = capsys.readouterr()
    ((row,), cut) = json.loads(out), err
    assert (row["key"], row["chosen"], row["downsampling_score"]) == (5, True, None)
    assert cut.startswith("the first 1 of 3 samples")
    show_chosen(ChosenTable(pd.DataFrame({"key": []}), 0, ""), json=False)
    assert capsys.readouterr().err == ""


def test_labels_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """A whole number beyond 2^53 keeps its value, even next to a missing sample; a fraction stays a fraction."""
    storage = FakeStorage()
    selector = informed(storage, [2**53 + 1] * 10)
    storage.client().delete_samples("d", np.array([5]))
    show_chosen(chosen_samples(selector, storage.client(), RUN, 0, TRAINED), json=True)
    assert [row["label"] for row in json.loads(capsys.readouterr().out)] == [2**53 + 1, None, *[2**53 + 1] * 4]
