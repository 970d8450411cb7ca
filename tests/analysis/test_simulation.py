"""Simulated policies are compared on the same intervals, and in the right direction of each metric."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from modyn.analysis.results import RunResults, evaluations_table, triggers_table
from modyn.analysis.simulation import simulation_table
from modyn.analysis.simulation_report import MAX_NAMES, cost_figure, render_simulation, times_figure
from modyn.evaluator.client import EvaluationResult
from modyn.records import EvalInterval, RunId, SampleBatch
from modyn.supervisor.client import Run, RunMode, RunState, TriggerRecord, TriggerState
from modyn.supervisor.simulation.engine import SimulatedPolicy, Simulation
from modyn.supervisor.simulation.training_forecast import TrainingForecast
from modyn.supervisor.triggers import build_trigger
from modyn.supervisor.triggers.measures.training_seconds import TrainingSeconds
from modyn.testing.stack import TINY_PARSER

SCORES = (0.5, 0.5, 0.9)
"""Scores of each model at the intervals from 10, 20 and 30. The last interval is easy."""


def reference(metric: str, values: tuple[float, ...] = SCORES, models: str = "matrix") -> RunResults:
    """A run that trained at positions 5 and 25 of a stream with one sample a second."""
    measured = {"name": metric} | ({} if metric == "Accuracy" else {"config": {"task": "multiclass", "num_classes": 3}})
    section = {
        "datasets": [{"dataset_id": "d", "bytes_parser_function": TINY_PARSER, "batch_size": 5, "metrics": [measured]}],
        "handlers": [{"name": "h", "execution_time": "manual", "models": models, "datasets": ["d"], "strategy": {}}],
    }
    run = Run(RunId("r-0001"), "r", RunMode.EXPERIMENT, RunState.FINISHED, 0.0, pipeline={"evaluation": section})
    triggers = [
        TriggerRecord(at, position, 0, position - 1, position - 1, TriggerState.TRAINED, 0.0, model_id=at + 1)
        for at, position in enumerate((5, 25))
    ]
    cells = [
        EvaluationResult(RunId("r"), t.trigger_id, 1, "h", "d", EvalInterval(start, start + 10, start), metric, value, "", 5)
        for t in triggers
        for start, value in zip((10, 20, 30), values, strict=True)
    ]
    return RunResults(run, triggers_table(triggers), evaluations_table(cells))


def table_of(results: RunResults, **amounts: int) -> pd.DataFrame:
    """Simulate policies on 40 samples. Each policy fires after a fixed number of samples, repeatedly."""
    forecast = TrainingForecast(seconds=TrainingSeconds(1.0))
    sections: dict[str, dict[str, Any]] = {
        name: {"id": "DataAmountTrigger", "num_samples": size} for name, size in amounts.items()
    }
    simulation = Simulation({name: SimulatedPolicy(build_trigger(section), forecast) for name, section in sections.items()})
    times = np.arange(40)
    simulation.process(SampleBatch(times, times, times))
    return simulation_table(simulation, ["DataAmountTrigger"] * len(sections), results).set_index("policy", drop=False)


def test_policies_are_compared_over_the_intervals_that_all_have_in_common() -> None:
    table = table_of(reference("Accuracy"), often=5, late=25, never=1000)
    assert table.loc["late", "scored Accuracy"] == pytest.approx(1 / 3)
    assert table["estimated Accuracy"].tolist() == pytest.approx([0.9, 0.9, float("nan")], nan_ok=True)
    assert table["pareto"].tolist() == [False, True, False], "the one without a score is left out"
    (note,) = table.attrs["notes"]
    assert note.startswith("estimated Accuracy: mean over 1 of 3 intervals")
    alone = table_of(reference("Accuracy"), often=5, never=1000)
    assert alone.loc["often", "estimated Accuracy"] == pytest.approx(np.mean(SCORES))


@pytest.mark.parametrize(("metric", "front"), [("Accuracy", [True, True]), ("HammingDistance", [False, True])])
def test_low_values_of_errors_are_the_good_ones(metric: str, front: list[bool]) -> None:
    """The policy that fires often costs more, and its newer model has the higher values."""
    results = reference(metric)
    results.evaluations.loc[results.evaluations["trigger_id"] == 1, "value"] += 0.05
    table = table_of(results, often=5, seldom=20)
    assert table["pareto"].tolist() == front
    assert ("low values are good" in table.attrs["notes"][0]) is (metric != "Accuracy")
    page = render_simulation(table, "run r")
    assert table.attrs["notes"][0] in page


def test_points_have_the_names_of_their_policies_next_to_them_unless_there_are_many() -> None:
    table = table_of(reference("Accuracy"), often=5, seldom=20)
    shown = cost_figure(table, "estimated Accuracy", higher_is_better=True).data
    assert {name for trace in shown if "text" in trace["mode"] for name in trace["text"]} == {"often", "seldom"}
    many = pd.concat([table] * MAX_NAMES, ignore_index=True)
    crowded = cost_figure(many, "estimated Accuracy", higher_is_better=True).data
    assert not any("text" in trace["mode"] for trace in crowded if len(trace["x"]) > MAX_NAMES)
    for trace in (*shown, *crowded):  # where the pointer is, in any case
        assert trace["hovertemplate"].startswith("%{text}")
        assert len(trace["text"]) == len(trace["x"])


def test_screen_readers_are_told_the_names_and_values_of_points() -> None:
    table = table_of(reference("Accuracy"), often=5, seldom=20, never=1000)
    words = cost_figure(table, "estimated Accuracy", higher_is_better=True).words
    assert words == (
        "Each policy with training time in s and estimated Accuracy: often: 8, 0.7, beaten; seldom: 2, 0.7, not beaten"
    ), "the one that has no score has no point"
    assert times_figure(table).words == "Each policy with its number of triggers: often: 8; seldom: 2; never: 0"
    many = pd.concat([table] * MAX_NAMES, ignore_index=True)
    assert (
        f"and {2 * MAX_NAMES - MAX_NAMES} more, in the table of all policies"
        in cost_figure(many, "estimated Accuracy", higher_is_better=True).words
    )
    assert f"aria-label='Cost and waiting. {cost_figure_words(table)}'" in render_simulation(table, "run r")


def cost_figure_words(table: pd.DataFrame) -> str:
    waiting = table.assign(**{"mean waiting in days": table["mean_waiting_s"] / 86_400})
    return cost_figure(waiting, "mean waiting in days", higher_is_better=False).words


def test_a_reference_without_the_whole_matrix_is_named() -> None:
    (note,) = table_of(reference("Accuracy", models="active"), often=5).attrs["notes"]
    assert "handler 'h' did not evaluate all models" in note
    assert "models: matrix" in note
    (note,) = table_of(reference("Accuracy"), often=5).attrs["notes"]
    assert "models: matrix" not in note
