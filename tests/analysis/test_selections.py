"""What triggers chose from and what they chose, as tables, and the picture of class shares."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from modyn.analysis.selections import class_shares_figure, class_shares_table, selections_table
from modyn.records import ClassCount, SelectionSummary
from modyn.supervisor.client import TriggerRecord, TriggerState


def summary(trigger_id: int, *classes: ClassCount, shared: int = 0) -> SelectionSummary:
    chosen = sum(found.chosen for found in classes)
    candidates = sum(found.candidates for found in classes)
    ages = (0.0, 10.0, 20.0, 30.0, 40.0) if chosen else ()
    weights = (0.5, 0.75, 1.0, 2.0, 4.0) if chosen else ()
    return SelectionSummary(
        trigger_id, candidates, chosen, shared, len(classes), classes, ages, (0.0, 20.0, 40.0, 60.0, 80.0), weights
    )


def trigger(trigger_id: int, **result: Any) -> TriggerRecord:
    return TriggerRecord(trigger_id, 10, 0, 9, 9, TriggerState.TRAINED, 1.0, num_keys=30, model_id=1, training_result=result)


DOWNSAMPLED: dict[str, Any] = {
    "num_samples": 15,
    "downsampling": {
        "strategy": "Loss",
        "num_candidates": 60,
        "num_chosen": 15,
        "class_shares": {"before": {"0": 0.5, "1": 0.5}, "after": {"1": 1.0}},
        "seconds": {"score": 2.0, "choose": 0.5},
        "effective_epochs": 0.5,
    },
}
SUMMARIES = [
    summary(0, ClassCount(0, 60, 20), ClassCount(1, 20, 10)),
    summary(1, ClassCount(0, 50, 15), ClassCount(1, 50, 15), shared=6),
    summary(2, ClassCount(0, 5, 0)),
]
TRIGGERS = [
    trigger(0, num_samples=60),
    replace(trigger(1, **DOWNSAMPLED), downsampling_turn=1, downsampling_score=0.75),
    replace(trigger(2), downsampling_turn=1),
]


def test_one_row_a_trigger() -> None:
    table = selections_table(SUMMARIES, TRIGGERS)
    assert table["trigger_id"].to_list() == [0, 1, 2]
    assert table[["num_candidates", "num_chosen", "num_classes"]].to_numpy().tolist() == [[80, 30, 2], [100, 30, 2], [5, 0, 1]]
    assert table["chosen_before"].fillna(-1).to_list() == [0.0, 0.2, -1.0]
    assert table["median_age"].fillna(-1).to_list() == [20.0, 20.0, -1.0]
    assert table["median_age_candidates"].to_list() == [40.0, 40.0, 40.0]
    assert table[["least_weight", "median_weight", "most_weight"]].to_numpy().tolist()[0] == [0.5, 1.0, 4.0]
    assert table["downsampling"].to_list() == [None, "Loss", None]
    assert table["downsampling_turn"].fillna(-1).to_list() == [-1, 1, 1]
    assert table["downsampling_score"].fillna(-1).to_list() == [-1.0, 0.75, -1.0]
    assert table["effective_epochs"].fillna(-1).to_list() == [2.0, 0.5, -1.0]
    assert table[["downsampling_candidates", "downsampling_chosen", "score_s", "choose_s"]].to_numpy().tolist()[1] == [
        60,
        15,
        2.0,
        0.5,
    ]


def test_one_row_for_each_class_of_a_trigger() -> None:
    table = class_shares_table(SUMMARIES, TRIGGERS)
    assert table[["trigger_id", "label", "candidates", "chosen"]].to_numpy().tolist() == [
        [0, 0, 60, 20], [0, 1, 20, 10], [1, 0, 50, 15], [1, 1, 50, 15], [2, 0, 5, 0]
    ]  # fmt: skip
    assert table["candidates_share"].to_list() == [0.75, 0.25, 0.5, 0.5, 1.0]
    assert table["chosen_share"].to_list() == [20 / 30, 10 / 30, 0.5, 0.5, 0.0]
    assert table["trained_share"].fillna(-1).to_list() == [-1, -1, 0.0, 1.0, -1]


def test_the_picture_stacks_what_was_there_what_was_chosen_and_what_was_trained_on() -> None:
    figure = class_shares_figure(class_shares_table(SUMMARIES, TRIGGERS))
    assert figure is not None
    assert [trace["name"] for trace in figure.data] == ["class 0", "class 1"]
    triggers, kinds = figure.data[1]["x"]
    assert list(zip(triggers, kinds, figure.data[1]["y"], strict=True)) == [
        ("trigger 0", "there", 0.25), ("trigger 0", "chosen", 10 / 30),
        ("trigger 1", "there", 0.5), ("trigger 1", "chosen", 0.5), ("trigger 1", "trained", 1.0),
    ]  # fmt: skip
    json.dumps(figure.data, allow_nan=False)


def test_without_classes_there_is_no_picture() -> None:
    assert class_shares_figure(class_shares_table([], [])) is None
    assert selections_table([], []).empty
