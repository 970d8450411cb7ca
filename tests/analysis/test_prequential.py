"""The prequential error over a stream equals sums that are computed sample by sample."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.analysis.charts.steps import prequential_figure, promotion_rows, training_figure
from modyn.analysis.prequential import prequential_table
from modyn.analysis.results import triggers_table
from modyn.config.durations import format_timestamp
from modyn.model_storage.client import GateVerdict, Promotion
from modyn.records import RunId
from modyn.supervisor.client import TriggerRecord
from modyn.supervisor.journal.states import TriggerState
from modyn.trainer_server.client import TrainingResult


def trigger(number: int, result: dict[str, Any], *, online: bool = True) -> TriggerRecord:
    made: dict[str, Any] = {"model_id": number, "training_result": TrainingResult.from_mapping(result), "online": online}
    return TriggerRecord(number, 10 * number, 0, 9, 100 * number, TriggerState.TRAINED, 0.0, **made)


def of_steps(number: int, num: list[int], loss: list[float], errors: list[int] | None = None) -> TriggerRecord:
    columns = {"first_step": 1, "num": num, "loss": loss} | ({} if errors is None else {"errors": errors})
    return trigger(number, {"prequential": columns})


@given(
    steps=st.lists(st.lists(st.booleans(), min_size=1, max_size=7), min_size=1, max_size=12),
    window=st.integers(1, 20),
    cut=st.integers(0, 12),
)
def test_means_are_those_of_the_single_samples(steps: list[list[bool]], window: int, cut: int) -> None:
    def record(number: int, part: list[list[bool]]) -> TriggerRecord:
        errors = [sum(step) for step in part]
        return of_steps(number, [len(step) for step in part], [float(e) for e in errors], errors)

    table = prequential_table([record(2, steps[cut:]), record(1, steps[:cut])], window)
    assert table["num"].tolist() == [len(step) for step in steps]
    for row in range(len(steps)):
        flat = np.array([error for step in steps[: row + 1] for error in step], float)
        found = table.iloc[row]
        assert found["tested"] == len(flat)
        assert found["error"] == pytest.approx(np.mean(steps[row]))
        assert found["cumulated_error"] == pytest.approx(flat.mean())
        newest, count = 0, 0
        while count < window and newest <= row:
            count += len(steps[row - newest])
            newest += 1
        assert found["windowed_error"] == pytest.approx(flat[-count:].mean())
        # The samples of a step have the weight of its last one.
        later = np.concatenate(
            [np.full(len(step), sum(map(len, steps[i + 1 : row + 1]))) for i, step in enumerate(steps[: row + 1])]
        )
        weights = (1 - 1 / window) ** later
        assert found["faded_error"] == pytest.approx((flat * weights).sum() / weights.sum())
    assert (table["loss"] == table["error"]).all()


def test_without_classes_there_is_a_loss_alone() -> None:
    table = prequential_table([trigger(0, {"num_steps": 3}, online=False), of_steps(1, [2, 1], [3.0, 5.0])])
    assert table["cumulated_loss"].tolist() == [1.5, pytest.approx(8 / 3)]
    assert table["error"].isna().all()
    assert table["timestamp"].tolist() == [100, 100]
    figure = prequential_figure(table, triggers_table([trigger(0, {}, online=False), trigger(1, {}, online=False)]))
    assert figure is not None
    assert figure.layout["yaxis"]["title"]["text"] == "loss"
    assert len(figure.layout["shapes"]) == 2


def test_losses_that_are_not_finite_count_as_tested_only() -> None:
    table = prequential_table([of_steps(1, [2, 2, 4], [float("nan"), 4.0, float("inf")], [2, 1, 4])], window=4)
    assert table["tested"].tolist() == [2, 4, 8]
    assert table["cumulated_error"].tolist() == [1.0, 0.75, 7 / 8]
    for name in ("loss", "cumulated_loss", "windowed_loss", "faded_loss"):
        assert table[name].isna().tolist() == [True, False, name == "loss"]
        assert table[name][1] == 2.0
    assert table["cumulated_loss"][2] == table["windowed_loss"][2] == 2.0


def test_a_run_that_does_not_learn_online_has_none() -> None:
    table = prequential_table([trigger(0, {"num_steps": 3}, online=False)])
    assert table.empty
    triggers = triggers_table([trigger(0, {"num_steps": 3}, online=False)])
    assert prequential_figure(table, triggers) is None
    assert training_figure(triggers) is None


def test_what_was_done_about_the_error_is_marked() -> None:
    guard = {"rollbacks": [{"step": 3, "to_step": 1}], "left_out": False}
    records = [
        trigger(0, {"num_steps": 9}, online=False),
        of_steps(1, [2], [1.0]),
        replace(of_steps(2, [2], [1.0]), state=TriggerState.TESTED),
        replace(of_steps(3, [2], [1.0]), state=TriggerState.TESTED),
        trigger(4, {"num_steps": 4, "prequential": {"num": [2, 2], "loss": [1.0, 1.0]}, "step_guard": guard}),
        replace(of_steps(5, [2], [1.0]), state=TriggerState.TESTED, seconds={"train": 0.5}),
        trigger(6, {"num_steps": 2, "prequential": {"num": [2], "loss": [1.0]}}),
    ]
    table = triggers_table(records)
    assert table["num_tested"].fillna(0).tolist() == [0, 2, 2, 2, 4, 2, 2]
    assert table["rollbacks"].fillna(0).tolist() == [0, 0, 0, 0, 1, 0, 0]
    figure = prequential_figure(prequential_table(records), table)
    assert figure is not None
    at = {format_timestamp(100 * number): number for number in range(7)}
    shapes = [(shape["type"], shape["line"].get("dash"), at[shape["x0"]], at[shape["x1"]]) for shape in figure.layout["shapes"]]
    # A pause begins where the trigger before it fired.
    assert shapes == [("rect", None, 1, 3), ("rect", None, 4, 5), ("line", "dot", 0, 0), ("line", "solid", 4, 4)]
    spent = training_figure(table)
    assert spent is not None
    assert spent.data[0]["y"] == [0, 0, 0, 0, 0, 0.5, 0.5]
    assert spent.data[1]["y"] == [0, 0, 0, 0, 4, 4, 6]
    for one in (figure, spent):
        one.html()


def test_trainings_that_made_no_model_are_not_marked() -> None:
    records = [trigger(0, {"num_steps": 9}, online=False), of_steps(1, [2], [1.0])]
    untrained = replace(trigger(2, {}, online=False), state=TriggerState.UNTRAINED, model_id=None)
    empty = replace(trigger(3, {}, online=False), state=TriggerState.EMPTY, model_id=None)
    table = triggers_table([*records, untrained, empty])
    figure = prequential_figure(prequential_table(records), table)
    assert figure is not None
    assert [shape["x0"] for shape in figure.layout["shapes"]] == [format_timestamp(0)]


def test_promotions_name_the_triggers_of_their_models() -> None:
    table = triggers_table([replace(trigger(3, {}), model_id=7)])
    trail = [
        Promotion(RunId("r"), 7, "promote", None, "better", "me", 86_400.0),
        Promotion(RunId("r"), 6, "rollback", 7, "", "me", 86_401.0),
        Promotion(
            RunId("r"), 7, "refuse", 6, "", "me", 86_402.0, (GateVerdict("Accuracy on test > 0.9", 0.5, None, passed=False),)
        ),
    ]
    assert promotion_rows(trail, table) == [
        ["1970-01-02 00:00:00", "promote", 7, 3, "–", "me", "better", ""],
        ["1970-01-02 00:00:01", "rollback", 6, "–", 7, "me", "", ""],
        ["1970-01-02 00:00:02", "refuse", 7, 3, 6, "me", "", "Accuracy on test > 0.9: 0.5, not passed"],
    ]
