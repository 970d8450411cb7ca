"""Composite models and scores, against the definitions of the paper worked out by hand and by brute force."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from modyn.analysis.results import (
    Kind,
    Series,
    composite_model,
    composite_scores,
    evaluation_matrix,
    evaluations_table,
    pipeline_score,
    read_results,
    sample_notes,
    scores,
    series_cells,
    triggers_table,
)
from modyn.config.evaluation import EvaluationHandler
from modyn.config.system import SystemConfig
from modyn.evaluator.client import EvaluationResult, EvaluatorClient
from modyn.records import EvalInterval, RunId
from modyn.supervisor.client import RunMode, RunOptions, TriggerRecord, TriggerState
from modyn.testing.services import InMemoryServices, pipeline_yaml
from modyn.trainer_server.client import TrainingResult
from tests.support.running_supervisor import serve_supervisor


def trigger(trigger_id: int, last: int, model: int | None = 1, **more: object) -> TriggerRecord:
    fields = {
        "position": 0,
        "first_timestamp": 0,
        "fired_at_timestamp": last,
        "state": TriggerState.TRAINED,
        "started_at": 0.0,
        **more,
    }
    return TriggerRecord(trigger_id=trigger_id, last_timestamp=last, model_id=model, **fields)  # type: ignore[arg-type]


def result(trigger_id: int, start: int, value: float | None, metric: str = "Accuracy") -> EvaluationResult:
    return EvaluationResult(
        RunId("r"), trigger_id, trigger_id + 1, "h", "d", EvalInterval(start, start + 10, start), metric, value, "", 5
    )


def from_the_matrix(matrix: pd.DataFrame, triggers: pd.DataFrame, kind: Kind) -> pd.DataFrame:
    """Return the expected result of `composite_scores`, looked up in the evaluation matrix."""
    intervals = matrix.columns.to_frame(index=False)
    chosen = composite_model(triggers, intervals["anchor"].astype("int64").tolist(), kind)
    rows = matrix.index.get_indexer(pd.Index([-1 if trigger is None else trigger for trigger in chosen]))
    values = np.full(len(chosen), np.nan)
    known = rows >= 0
    values[known] = matrix.to_numpy(np.float64)[rows[known], np.flatnonzero(known)]
    return intervals.assign(trigger_id=pd.array(chosen, dtype="Int64"), value=values)


def test_figure_two_of_the_paper() -> None:
    """Models whose data ends at 10, 20 and 24; intervals anchored at 5, 10, 15, 25 and 30: a model may be active for several or none."""
    triggers = triggers_table([trigger(0, 10), trigger(1, 20), trigger(2, 24)])
    anchors = [5, 10, 15, 25, 30]
    assert composite_model(triggers, anchors, "active") == [None, None, 0, 2, 2]
    assert composite_model(triggers, anchors, "trained") == [2, 2, 1, 2, 2], "the most recent one where none is active"


def test_a_trigger_without_a_model_answers_nowhere() -> None:
    triggers = triggers_table([trigger(0, 10), trigger(1, 20, model=None), trigger(2, 30)])
    assert composite_model(triggers, [25, 35], "active") == [0, 2]
    assert composite_model(triggers_table([]), [1], "trained") == [None]


def test_samples_that_a_training_skipped_are_counted() -> None:
    bad = {"key": 3, "place": "a.csv, line 4", "reason": "no number"}
    skipping = trigger(
        0, 10, training_result=TrainingResult.from_mapping({"num_samples": 9, "num_skipped": 1, "bad_samples": [bad]})
    )
    table = triggers_table([skipping, trigger(1, 20, num_keys=5), trigger(2, 30, model=None)])
    assert table["num_trained"].tolist() == [9, 5, pd.NA]
    assert table["num_skipped"].tolist() == [1, 0, pd.NA]
    assert table["bad_samples"].tolist() == [[bad], [], []]


@pytest.mark.parametrize(("mode", "num_loaded"), [("batch_then_sample", 36), ("sample_then_batch", 9)])
def test_candidates_that_were_not_chosen_within_their_batch_were_loaded_too(mode: str, num_loaded: int) -> None:
    choosing = trigger(
        0,
        10,
        training_result=TrainingResult.from_mapping({"num_samples": 9, "downsampling": {"mode": mode, "num_candidates": 36}}),
    )
    table = triggers_table([choosing, trigger(1, 20, num_keys=5), trigger(2, 30, model=None)])
    assert table["num_trained"].tolist() == [9, 5, pd.NA]
    assert table["num_loaded"].tolist() == [num_loaded, 5, pd.NA]


def test_late_samples_do_not_make_a_newer_model_active_in_the_past() -> None:
    """The rule of the supervisor's evaluation plan: model 1 follows model 0, whose data reaches 30; trigger 2 trained nothing."""
    reached = [
        trigger(0, 30),
        trigger(1, 10, fired_at_timestamp=30),
        trigger(2, 50, model=None),
        trigger(3, 40, fired_at_timestamp=50),
    ]
    triggers = triggers_table(reached)
    assert composite_model(triggers, [20, 31, 45, 51], "active") == [None, 1, 1, 3]
    assert composite_model(triggers, [20, 31, 45, 51], "trained") == [3, 3, 3, 3]


def test_scores_leave_out_what_is_undefined() -> None:
    triggers = triggers_table([trigger(0, 5), trigger(1, 15)])
    values = {(0, 0): 0.1, (0, 10): 0.5, (0, 20): None, (1, 0): 0.9, (1, 10): 0.7, (1, 20): 0.8}
    evaluations = evaluations_table([result(t, s, v) for (t, s), v in values.items()])
    series = Series("h", "d", "Accuracy")
    matrix = evaluation_matrix(evaluations, series)
    assert matrix.shape == (2, 3)
    active = from_the_matrix(matrix, triggers, "active")
    assert active["trigger_id"].tolist() == [pd.NA, 0, 1]
    np.testing.assert_array_equal(active["value"], [np.nan, 0.5, 0.8])
    for kind in ("active", "trained"):
        of_matrix, of_cells = from_the_matrix(matrix, triggers, kind), composite_scores(evaluations, triggers, kind)
        pd.testing.assert_frame_equal(of_matrix, of_cells, check_dtype=False)
    assert pipeline_score(active) == pytest.approx(0.65)
    assert pipeline_score(from_the_matrix(matrix, triggers, "trained")) == pytest.approx((0.9 + 0.7 + 0.8) / 3)
    table = scores(triggers, evaluations)
    assert (table.loc[0, "scored_intervals"], table.loc[0, "intervals"]) == (2, 3)


def test_a_composite_model_that_was_not_evaluated_has_no_score() -> None:
    """What a handler of `models: active` evaluated is the trained model's cell where no later one follows: one of five, and no score."""
    triggers = triggers_table([trigger(0, 9), trigger(1, 19)])
    cells = evaluations_table([result(0, 10, 0.5), result(1, 20, 0.8), result(1, 30, 0.6)])
    for models, expected in (("active", (1.9 / 3, np.nan)), ("train", (np.nan, 0.7))):
        handler = {"name": "h", "execution_time": "manual", "models": models, "datasets": ["d"], "strategy": {}}
        table = scores(triggers, cells, [EvaluationHandler.model_validate(handler)])
        assert (table.loc[0, "active"], table.loc[0, "trained"]) == pytest.approx(expected, nan_ok=True)
    assert (table.loc[0, "scored_intervals"], table.loc[0, "intervals"]) == (2, 3)


def test_handlers_of_requests_have_the_scores_that_they_evaluated(system_config: SystemConfig, tmp_path: Path) -> None:
    """The handler is from a file, and the pipeline does not name it."""
    services = InMemoryServices(tmp_path)
    services.storage.add_dataset("train")
    services.storage.add_samples("train", timestamps=range(30))
    strategy = {"type": "SlicingEvalStrategy", "eval_every": "10s", "eval_start_from": 0, "eval_end_at": 40}
    handler = {"name": "late", "execution_time": "manual", "models": "active", "strategy": strategy, "datasets": ["train"]}
    datasets = [{"dataset_id": "train", "metrics": [{"name": "Accuracy"}]}]
    section = yaml.safe_dump({"handlers": [handler, {**handler, "name": "other", "models": "matrix"}], "datasets": datasets})
    with serve_supervisor(services, system_config) as client:
        run = client.submit(pipeline_yaml(), "p.yaml", RunOptions(RunMode.EXPERIMENT))
        list(client.watch(run.run_id))
        for name in ("late", "other"):
            asked = client.evaluate(run.run_id, [name], yaml=section)
            list(client.watch(run.run_id, asked.after_seq, asked.number))
        results = read_results(client, cast("EvaluatorClient", services.evaluator), run.run_id)
        assert [list(asked.handlers) for asked in client.evaluations(run.run_id)] == [["late"], ["other"]]
    table = scores(results.triggers, results.evaluations, results.handlers).set_index("handler")
    assert table["trained"].notna().to_dict() == {"late": False, "other": True}
    assert table["active"].notna().all()


def test_nothing_evaluated_gives_an_empty_table() -> None:
    assert scores(triggers_table([]), evaluations_table([])).empty


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.lists(st.integers(-5, 60), max_size=10))
def test_active_is_the_newest_model_that_ends_before_the_anchor(steps: list[int], anchors: list[int]) -> None:
    ends = np.cumsum(steps).tolist()
    triggers = triggers_table([trigger(i, end) for i, end in enumerate(ends)])
    active = composite_model(triggers, anchors, "active")
    trained = composite_model(triggers, anchors, "trained")
    for anchor, a, t in zip(anchors, active, trained, strict=True):
        assert a == max((i for i, end in enumerate(ends) if end < anchor), default=None)
        assert t == (len(ends) - 1 if a is None else min(a + 1, len(ends) - 1))


def test_scores_of_two_registrations_of_a_dataset_stand_in_no_common_matrix() -> None:
    mixed = [replace(result(0, 10, 0.5), dataset_identity="aaaabbbbcccc"), result(0, 10, 0.9), result(1, 10, 0.6)]
    names = [series.dataset for series, _ in series_cells(evaluations_table(mixed))]
    assert names == ["d (registration aaaabbbb)", "d (registration not known)"]
    assert {series.dataset for series, _ in series_cells(evaluations_table(mixed[1:]))} == {"d"}


def test_scores_from_before_a_deletion_are_named_where_they_stand_next_to_newer_ones() -> None:
    def scored(*num_deleted: int | None) -> list[str]:
        found = [replace(result(trigger_id, 10, 0.5), num_deleted=number) for trigger_id, number in enumerate(num_deleted)]
        return sample_notes(evaluations_table(found), "r-0001")

    (note,) = scored(3, 3, 303, 303)
    assert note.startswith(
        "300 samples of dataset 'd' were deleted since it was scored for 2 triggers, 0 to 1: these scores may come from other"
    )
    assert "`modyn evaluate r-0001 --handler h` scores all models on the present samples" in note
    assert "1 samples of dataset 'd' were deleted since it was scored for trigger 1" in scored(1, 0, 1)[0]
    assert scored(3, 3) == scored(None, 3) == scored() == []


def test_scores_of_an_interval_that_got_samples_are_named_where_they_stand_next_to_newer_ones() -> None:
    def scored(*cells: tuple[int, int, int]) -> list[str]:
        found = [replace(result(t, start, 0.5), num_samples=n, num_deleted=0) for t, start, n in cells]
        return sample_notes(evaluations_table(found), "r-0001")

    (note,) = scored((0, 10, 60), (1, 10, 90), (2, 10, 1200), (2, 20, 5))
    assert note.startswith(
        "dataset 'd' got samples or labels in the interval 1970-01-01 00:00:10 to 1970-01-01 00:00:20 (60 samples, then 1,200) since it was scored "
        "for 2 triggers, 0 to 1: these scores may come from other"
    )
    assert "`modyn evaluate r-0001 --handler h` scores all models on the present samples" in note
    assert (
        "(60 samples, then 90) and in 1 more since it was scored for trigger 0"
        in scored((0, 10, 60), (1, 10, 90), (0, 20, 5), (1, 20, 7))[0]
    )
    assert scored((0, 10, 60), (1, 10, 60), (1, 20, 70), (2, 30, 80)) == [], "each interval has its own samples"


def test_an_interval_without_samples_has_no_score_to_compare() -> None:
    empty = [replace(result(0, 10, None), num_samples=0), result(1, 10, 0.5)]
    assert sample_notes(evaluations_table(empty), "r-0001") == []


def test_samples_that_were_deleted_are_not_taken_for_samples_that_came() -> None:
    def scored(*numbers: tuple[int, int]) -> list[str]:
        found = [replace(result(t, 10, 0.5), num_samples=n, num_deleted=deleted) for t, (n, deleted) in enumerate(numbers)]
        return sample_notes(evaluations_table(found), "r-0001")

    (note,) = scored((50, 0), (60, 10), (60, 10))
    assert note.startswith("10 samples of dataset 'd' were deleted")
    deleted, grown = scored((50, 0), (40, 10), (60, 10))
    assert "since it was scored for trigger 0:" in deleted
    assert "since it was scored for trigger 1:" in grown
