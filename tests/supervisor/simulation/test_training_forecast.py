"""Forecasts of the result of a trigger: from the journal if the run has the same trigger, otherwise from the run's trainings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from modyn.errors import InvalidArgumentError
from modyn.supervisor.journal.records import TriggerRecord
from modyn.supervisor.journal.states import TriggerState
from modyn.supervisor.simulation.training_forecast import TrainingForecast
from modyn.supervisor.triggers.base import TriggerOutcome
from modyn.supervisor.triggers.measures.training_seconds import TrainingSeconds, TrainingTime, TrainingTimes, fit_seconds
from modyn.trainer_server.client import TrainingResult


def record(trigger_id: int, position: int, num_keys: int, train_s: float, model_id: int | None = None) -> TriggerRecord:
    return TriggerRecord(
        trigger_id,
        position,
        first_timestamp=0,
        last_timestamp=position,
        fired_at_timestamp=position,
        state=TriggerState.UNTRAINED if model_id is None else TriggerState.TRAINED,
        started_at=0.0,
        num_keys=num_keys,
        model_id=model_id,
        training_result=TrainingResult.from_mapping({"num_samples": 2 * num_keys}),
        seconds={"select": 0.5, "train": train_s, "evaluate": 99.0, "total": 0.5 + train_s},
    )


RUN = [record(0, 100, 100, 3.0, 11), record(1, 300, 200, 5.0, 12), record(2, 400, 100, 1.0), record(3, 500, 100, 3.0, 13)]


def fired(position: int, trigger_id: int = 1) -> TriggerOutcome:
    return TriggerOutcome(trigger_id, position, first_timestamp=0, last_timestamp=position)


def test_the_trigger_of_the_run_itself_is_answered_by_its_journal() -> None:
    forecast = TrainingForecast(RUN, {"tail_triggers": 0})
    outcome = forecast.outcome(fired(300), [100])
    assert (outcome.model_id, outcome.num_keys, outcome.num_trained) == (12, 200, 400)
    assert outcome.seconds == {"select": 0.5, "train": 5.0, "total": 5.5}
    assert forecast.outcome(fired(400), [100, 300]).model_id is None, "the run trained nothing there"


def test_another_trigger_is_forecast_from_the_trainings_and_has_the_nearest_earlier_model() -> None:
    forecast = TrainingForecast(RUN, {"tail_triggers": 0})
    outcome = forecast.outcome(fired(450), [300])
    assert (outcome.model_id, outcome.num_keys, outcome.num_trained) == (12, 150, 300)
    assert outcome.seconds == pytest.approx({"select": 0.5, "train": 4.0, "total": 4.5})
    assert forecast.outcome(fired(300), [200]).num_keys == 100, "another trigger before it, another trigger set"
    assert forecast.outcome(fired(50), []).model_id == 11, "before the run's first trigger, its first model"
    assert TrainingForecast(RUN, model_id=5).outcome(fired(450), [300]).model_id == 5


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"tail_triggers": 0}, 50),
        ({"tail_triggers": 1}, 250),
        ({"tail_triggers": 5}, 450),
        ({}, 450),
        ({"limit": 70}, 70),
        (None, 50),
    ],
)
def test_samples_follow_the_rule_of_the_selection(selection: dict[str, int] | None, expected: int) -> None:
    assert TrainingForecast((), selection).outcome(fired(450, 3), [200, 400]).num_keys == expected


def test_a_selection_that_takes_a_part_does_so_here() -> None:
    run = [record(0, 100, 30, 1.0, 1), record(1, 200, 30, 1.0, 2)]
    assert TrainingForecast(run, {"tail_triggers": 0}).outcome(fired(450), [250]).num_keys == 60


def test_given_seconds_take_the_place_of_those_of_the_run() -> None:
    outcome = TrainingForecast(RUN, seconds=TrainingSeconds(1.0, 0.1)).outcome(fired(300), [100])
    assert outcome.seconds == {"train": 21.0, "total": 21.0}


def test_a_policy_that_looks_at_seconds_that_nobody_knows_says_what_to_give() -> None:
    outcome = TrainingForecast().outcome(fired(300), [])
    assert (outcome.num_keys, outcome.num_trained) == (300, 300)
    for look in (lambda: outcome.seconds.get("total"), lambda: dict(outcome.seconds), lambda: len(outcome.seconds)):
        with pytest.raises(InvalidArgumentError, match="--seconds-per-sample"):
            look()


@pytest.mark.parametrize(
    ("samples", "seconds", "expected"),
    [
        ([10, 20, 30], [2.0, 3.0, 4.0], (1.0, 0.1)),
        ([10, 20], [0.5, 4.0], (0.0, 0.17)),
        ([20, 20], [1.0, 3.0], (2.0, 0.0)),
        ([20, 21, 19], [1.0, 3.0, 2.0], (2.0, 0.0)),
        ([10, 20], [3.0, 1.0], (2.0, 0.0)),
        ([0, 0], [3.0, 1.0], (2.0, 0.0)),
    ],
)
def test_seconds_are_fitted_without_negative_numbers(
    samples: list[int], seconds: list[float], expected: tuple[float, float]
) -> None:
    fitted = fit_seconds([TrainingTime(*training) for training in zip(samples, seconds, strict=True)])
    assert (fitted.per_trigger, fitted.per_sample) == pytest.approx(expected)


def equal(batches_s: float | None) -> list[TriggerRecord]:
    """Trainings of 100 samples, 2 s each."""
    run = [record(at, 100 * (at + 1), 100, 2.0, at) for at in range(3)]
    if batches_s is None:
        return run
    return [
        replace(one, training_result=TrainingResult(seconds={"load": 0.5, "forward": batches_s - 0.5, "store": 0.1}))
        for one in run
    ]


def total(run: list[TriggerRecord], num_keys: int, seconds: TrainingSeconds | None = None) -> float:
    outcome = TrainingForecast(run, {"tail_triggers": 0}, seconds).outcome(fired(999), [999 - num_keys])
    return outcome.seconds["total"]


def test_trainings_of_equal_size_say_what_a_trigger_costs_by_their_batches() -> None:
    run = equal(1.5)
    assert total(run, 50) == pytest.approx(0.5 + 0.5 + 0.75), "selection, the start, batches"
    assert total(run, 500) == pytest.approx(0.5 + 0.5 + 7.5)
    assert TrainingForecast(run).outcome(fired(999), []).batches_s == pytest.approx(0.015 * 999)
    assert "1 s a trigger and 15 s a thousand samples" in TrainingForecast(run).note
    assert "all of about 100 samples" in TrainingForecast(run).note


def test_the_rule_is_that_of_a_live_cost_trigger() -> None:
    for batches_s in (None, 1.5):
        times = TrainingTimes(10)
        for one in equal(batches_s):
            times.add(100, one.outcome())
        for num_keys in (50, 100, 500):
            assert times.forecast(num_keys) == pytest.approx(total(equal(batches_s), num_keys) - 0.5)


def test_what_seconds_rest_on_is_said() -> None:
    assert "--seconds-per-trigger" in TrainingForecast(equal(None)).note
    assert "by regression over the run's 3 trainings, of 100 to 200 samples" in TrainingForecast(RUN).note
    assert TrainingForecast(equal(None), seconds=TrainingSeconds(3.0, 0.5)).note.endswith("as given")
    assert TrainingForecast().note == ""
