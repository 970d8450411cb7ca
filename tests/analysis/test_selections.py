"""Candidates and chosen samples of triggers as tables, and the chart of class shares."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import plotly.graph_objects as go
import pytest

from modyn.analysis.charts.selections import ages_figure, class_shares_figure, trained_shares_figure
from modyn.analysis.selection_rows import DOWNSAMPLING_CELLS, SELECTION_CELLS, cells_of, downsampled, rows_of, selection_notes
from modyn.analysis.selections import SelectionTables, class_shares_table, selections_table, trained_shares_table
from modyn.cli.views.selection_tables import print_selections
from modyn.records import ClassCount, SelectionSummary
from modyn.supervisor.client import TriggerRecord, TriggerState
from modyn.trainer_server.client import TrainingResult


def summary(trigger_id: int, *classes: ClassCount, shared: int = 0) -> SelectionSummary:
    chosen = sum(found.chosen for found in classes)
    candidates = sum(found.candidates for found in classes)
    ages = (0.0, 10.0, 20.0, 30.0, 40.0) if chosen else ()
    weights = (0.5, 0.75, 1.0, 2.0, 4.0) if chosen else ()
    return SelectionSummary(
        trigger_id, candidates, chosen, shared, len(classes), classes, ages, (0.0, 20.0, 40.0, 60.0, 80.0), weights
    )


def trigger(trigger_id: int, **result: Any) -> TriggerRecord:
    return TriggerRecord(
        trigger_id,
        10,
        0,
        9,
        9,
        TriggerState.TRAINED,
        1.0,
        num_keys=30,
        model_id=1,
        training_result=TrainingResult.from_mapping(result),
    )


DOWNSAMPLED: dict[str, Any] = {
    "num_samples": 15,
    "seconds": {"irreducible": 7.0},
    "downsampling": {
        "strategy": "Loss",
        "num_candidates": 60,
        "num_chosen": 15,
        "class_shares": {"before": {"0": 0.5, "1": 0.5}, "after": {"1": 1.0}},
        "mode": "sample_then_batch",
        "largest_weight": 9.0,
        "effective_samples": 3.2,
        "weight_quantiles": {"0": 0.1, "0.05": 0.25, "0.25": 0.5, "0.5": 1.0, "0.75": 2.0, "0.95": 3.5, "1": 9.0},
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
    weights = [f"downsampling_weight_{percent}" for percent in (5, 50, 95)]
    assert table[weights].to_numpy().tolist()[1] == [0.25, 1.0, 3.5]
    assert table[weights].iloc[[0, 2]].isna().all(axis=None)
    assert table["irreducible_s"].fillna(-1).to_list() == [-1, 7.0, -1]
    assert table[["downsampling_weight_largest", "downsampling_effective"]].fillna(-1).to_numpy().tolist() == [
        [-1, -1],
        [9.0, 3.2],
        [-1, -1],
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


def recorded(trigger_id: int, before: dict[str, float], after: dict[str, float], **more: Any) -> TriggerRecord:
    record = {
        "strategy": "Loss",
        "num_candidates": 80,
        "num_chosen": 40,
        "class_shares": {"before": before, "after": after},
        **more,
    }
    return trigger(trigger_id, downsampling=record)


TENS = summary(0, ClassCount(10, 50, 50), ClassCount(20, 50, 50))
FEW = summary(0, ClassCount(0, 40, 40), ClassCount(1, 40, 40), ClassCount(2, 20, 20))


@pytest.mark.parametrize(
    ("chosen", "record", "shares"),
    [
        pytest.param(TENS, recorded(0, {"1": 0.5, "2": 0.5}, {"1": 0.3, "2": 0.7}), [None, None], id="other labels, not said"),
        pytest.param(
            FEW,
            recorded(0, {"0": 0.2, "1": 0.4, "2": 0.4}, {"0": 1.0}, transforms_labels=True),
            [None, None, None],
            id="the same labels, of other samples",
        ),
        pytest.param(FEW, recorded(0, {"0": 0.4, "others": 0.6}, {"0": 0.5, "others": 0.5}), [0.5, None, None], id="folded"),
        pytest.param(FEW, recorded(0, {"0": 0.4, "others": 0.6}, {"0": 1.0}), [1.0, 0.0, 0.0], id="folded, none chosen"),
        pytest.param(FEW, recorded(0, {"0": 0.4, "1": 0.4, "2": 0.2}, {"0": 1.0}), [1.0, 0.0, 0.0], id="none chosen"),
        pytest.param(FEW, recorded(0, {}, {"0": 0.75, "2": 0.25}), [0.75, 0.0, 0.25], id="no choice looked at labels"),
        pytest.param(FEW, recorded(0, {}, {}), [None, None, None], id="labels are no classes"),
    ],
)
def test_a_share_that_is_not_known_is_missing(
    chosen: SelectionSummary, record: TriggerRecord, shares: list[float | None]
) -> None:
    found = class_shares_table([chosen], [record])
    assert [row["trained_share"] for row in rows_of(found)] == shares


def test_classes_of_a_training_with_other_labels_have_a_table_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """The run has two triggers. The second training maps their labels 10 and 20 to 1 and 2."""
    summaries = [TENS, summary(1, ClassCount(10, 50, 50), ClassCount(20, 50, 50))]
    triggers = [recorded(0, {"10": 0.5, "20": 0.5}, {"20": 1.0}), recorded(1, {"1": 0.5, "2": 0.5}, {"1": 0.25, "2": 0.75})]
    tables = SelectionTables(
        selections_table(summaries, triggers), class_shares_table(summaries, triggers), trained_shares_table(triggers)
    )
    assert tables.trained_class_shares.to_numpy().tolist() == [
        [0, "10", 0.5, 0.0], [0, "20", 0.5, 1.0], [1, "1", 0.5, 0.25], [1, "2", 0.5, 0.75]
    ]  # fmt: skip
    assert tables.other_shares["trigger_id"].to_list() == [1, 1]
    figure = trained_shares_figure(tables.other_shares)
    assert figure is not None
    assert [(trace["name"], trace["x"][1], trace["y"]) for trace in figure.data] == [
        ("class 1", ["before", "after"], [0.5, 0.25]), ("class 2", ["before", "after"], [0.5, 0.75])
    ]  # fmt: skip
    print_selections(tables)
    printed = capsys.readouterr().out
    assert "trigger\tclass 1\tclass 2\n1\t50.0% → 25.0%\t50.0% → 75.0%\n" in printed
    assert "0\t50.0% → 50.0% → 0.0%\t50.0% → 50.0% → 100.0%\n1\t50.0% → 50.0%\t50.0% → 50.0%\n" in printed


def test_the_command_line_prints_weights_and_seconds_of_downsampling(capsys: pytest.CaptureFixture[str]) -> None:
    tables = SelectionTables(
        selections_table(SUMMARIES, TRIGGERS), class_shares_table(SUMMARIES, TRIGGERS), trained_shares_table(TRIGGERS)
    )
    print_selections(tables)
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    header = next(at for at, line in enumerate(lines) if line[:2] == ["trigger", "policy"])
    assert dict(zip(lines[header], lines[header + 1], strict=True)) == {
        "trigger": "1", "policy": "Loss (turn 1, score 0.75)", "samples": "60", "trained on": "15", "kept": "25.0%", "weights": "0.25 / 1 / 3.5",
        "largest weight": "9", "effective": "3 (21.3%)", "score s": "2.00", "choose s": "0.50", "irreducible s": "7.00",
    }  # fmt: skip
    assert lines[header + 2][:2] == ["2", "– (turn 1, no score)"]
    assert lines[header + 3] == [""]


def test_texts_of_what_is_missing_are_dashes() -> None:
    table = selections_table([*SUMMARIES, summary(3, ClassCount(0, 2_000_000, 1_000_000))], [*TRIGGERS, trigger(3)])
    rows = cells_of(SELECTION_CELLS, table)
    assert rows[1] == ["1", "100", "30", "20.0%", "0.0 d", "0.0 d", "0.5 / 1 / 4", "0.50"]
    assert rows[2] == ["2", "5", "0", "–", "–", "0.0 d", "–", "–"]
    assert rows[3][1:3] == ["2,000,000", "1,000,000"]
    served = [row[1] for row in cells_of(DOWNSAMPLING_CELLS, downsampled(table))]
    assert served == ["Loss (turn 1, score 0.75)", "– (turn 1, no score)"]


def test_ages_and_overlap_are_lines_with_gaps() -> None:
    table = selections_table(SUMMARIES, TRIGGERS)
    figure = ages_figure(table)
    assert figure is not None
    candidates, chosen, overlap = figure.data
    assert candidates["y"] == [pytest.approx(40 / 86_400)] * 3
    assert chosen["y"] == [pytest.approx(20 / 86_400), pytest.approx(20 / 86_400), None]
    assert (overlap["y"], overlap["yaxis"]) == ([0.0, 0.2, None], "y2")
    go.Figure(figure.data, figure.layout)
    assert ages_figure(table[:1]) is None


def test_without_classes_there_is_no_picture() -> None:
    assert class_shares_figure(class_shares_table([], [])) is None
    assert selections_table([], []).empty


def test_choices_that_stand_still_are_told() -> None:
    still = [summary(number, ClassCount(0, 40, 30), shared=30) for number in (3, 4)]
    first = [replace(trigger(3, downsampling={**DOWNSAMPLED["downsampling"], "strategy": "RHOLoss"})), trigger(4)]
    same, rho = selection_notes(selections_table(still, first))
    assert same.startswith("Triggers that chose only samples of the previous trigger: 3, 4. ")
    assert "Choose ClassBalancedReservoir" in same
    assert "set sample_then_batch: false" in rho
    assert selection_notes(selections_table(SUMMARIES, TRIGGERS)) == []
