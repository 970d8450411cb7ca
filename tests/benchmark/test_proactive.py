"""Measurements and output of `benchmark.evidence proactive`, on few samples."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from benchmark.evidence.proactive import (
    INITIAL_EPOCHS,
    RETRAININGS,
    VERSIONS,
    ErrorSoFar,
    Outcome,
    check_tested,
    cost_of,
    known_outcomes,
    parts_of,
    run_proactive,
    scenarios,
    table_of,
    write_scenarios,
)
from benchmark.evidence.proactive_streams import DRAW, PARTS, STREAMS, position_of, timestamp_of
from modyn.records import SampleBatch
from modyn.supervisor.journal.records import TriggerRecord
from modyn.supervisor.journal.states import TriggerState
from modyn.supervisor.triggers import build_trigger


def outcome(scenario: str, seed: int, error: float, train_s: float, num_tested: int = 900) -> Outcome:
    return Outcome(
        stream="clicks",
        scenario=scenario,
        seed=seed,
        num_samples=1000,
        num_tested=num_tested,
        error=error,
        select_s=0.25,
        train_s=train_s,
        batches_s=0.5,
        total_s=9.0,
        num_trainings=3,
        num_trained=2000,
        curve=[(10, error)],
        cost=[(train_s, error)],
    )


def test_a_table_has_the_medians_of_all_seeds() -> None:
    outcomes = [outcome("C: proactive, uniform", seed, 0.1 * seed, 2.0 + seed) for seed in range(3)]
    outcomes += [outcome("B: retraining, cold", seed, 0.5, 4 * (2.0 + seed)) for seed in range(3)]
    rows = [line.strip("| ").split(" | ") for line in table_of(outcomes).splitlines()[2:]]
    assert rows[0] == ["C: proactive, uniform", "0.1000 (0.0000–0.2000)", "3", "2,000", "3.0", "0.5", "0.2", "1.00"]
    assert rows[1][-1] == "4.00"


def test_retraining_begins_with_the_same_initial_model_and_ends_before_the_last_tests() -> None:
    num_samples = 4015
    sections = scenarios(num_samples)
    initial = sections["A: online updates"]["trigger"]["num_samples"]
    parts = np.repeat(np.arange(PARTS), np.diff([position_of(part, num_samples) for part in range(PARTS + 1)]))
    stream = SampleBatch(
        np.arange(num_samples), np.array([timestamp_of(part) for part in parts.tolist()]), np.zeros(num_samples, np.int64)
    )
    trigger, fired = build_trigger(sections["B: retraining, cold"]["trigger"], None, "trigger"), [0]
    while (at := trigger.next_check(stream, fired[-1])) is not None:
        fired.append(at)
    assert fired[1:] == [position_of(part, num_samples) for part in range(10, 100, 5)]
    assert (fired[1], len(fired[2:])) == (initial, RETRAININGS)


def test_other_samples_than_those_after_the_initial_model_are_refused() -> None:
    check_tested([outcome("A", 0, 0.5, 1.0)], 1000)
    with pytest.raises(SystemExit, match="clicks, B, seed 2: 850 samples were tested, not 900"):
        check_tested([outcome("A", 0, 0.5, 1.0), outcome("B", 2, 0.5, 1.0, num_tested=850)], 1000)


def test_an_error_stands_at_the_seconds_of_training_until_then() -> None:
    def training(number: int, seconds: float) -> TriggerRecord:
        return TriggerRecord(number, 10 * number, 0, 9, 9, TriggerState.TRAINED, 0.0, seconds={"train": seconds, "select": 9.0})

    steps = [ErrorSoFar(64, 0.9, 1), ErrorSoFar(100, 0.8, 1), ErrorSoFar(164, 0.7, 2), ErrorSoFar(200, 0.6, 2)]
    assert cost_of([training(1, 2.0), training(2, 3.0)], steps) == [(2.0, 0.8), (5.0, 0.6), (5.0, 0.6)]
    step_batches = [ErrorSoFar(100, 0.9, 1), ErrorSoFar(200, 0.8, 2), ErrorSoFar(300, 0.7, None)]
    assert cost_of([training(1, 20.0), training(2, 30.0)], step_batches) == [(20.0, 0.9), (50.0, 0.8), (50.0, 0.7)]


def test_scenarios_go_side_by_side_where_there_are_fewer_seeds() -> None:
    assert parts_of(2, ["A", "B"], 2) == [(0, ("A", "B")), (1, ("A", "B"))]
    assert parts_of(2, ["A", "B"], 3) == [(0, ("A",)), (0, ("B",)), (1, ("A",)), (1, ("B",))]


def test_kept_outcomes_of_an_older_program_are_measured_again(tmp_path: Path) -> None:
    file, kept = tmp_path / "clicks-0.jsonl", outcome("A", 0, 0.5, 1.0)
    assert known_outcomes(file) == []
    fields = {name: value for name, value in asdict(kept).items() if name not in ("cost", "curve")}
    lines = [{**fields, "num_triggers": 20}, {**fields, "curve": [], "cost": []}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert known_outcomes(file) == [replace(kept, curve=[], cost=[])]


@pytest.mark.parametrize("name", STREAMS)
def test_streams_are_drawn_from_their_seeds_and_drift(name: str) -> None:
    def drawn(time: float, seed: int) -> np.ndarray:
        rows = np.empty(2000, STREAMS[name].record)
        DRAW[name](rows, time, np.random.default_rng(1), np.random.default_rng(seed))
        return rows

    np.testing.assert_array_equal(drawn(0.5, 3), drawn(0.5, 3))
    assert not np.array_equal(drawn(0.5, 3), drawn(0.5, 4))
    early, late = drawn(0.0, 3), drawn(1.0, 3)
    assert (early["label"] != late["label"]).mean() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
def test_scenarios_run(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    num_samples, chosen = 9000, ["C: proactive, uniform", "B: retraining, warm"]
    assert set(chosen) < set(scenarios(num_samples))
    run_proactive([name], 1, chosen, report=False, kept=tmp_path, num_samples=num_samples)
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0].strip("| ") for row in rows[1:]] == ["B: retraining, warm", "C: proactive, uniform"]
    found = {one.scenario: one for one in known_outcomes(tmp_path / f"{name}-0.jsonl")}
    retraining, steps = found["B: retraining, warm"], found["C: proactive, uniform"]
    assert (retraining.num_tested, steps.num_tested) == (8100, 8100), "the same samples"
    assert (retraining.num_trainings, steps.num_trainings) == (RETRAININGS, VERSIONS), "all are counted but the initial model"
    trained = sum(position_of(part, num_samples) for part in range(15, 100, 5))
    assert retraining.num_trained == INITIAL_EPOCHS * trained
    assert steps.num_trained == 8100 + 90 * 256, "a version has one step: 90 new samples and 256 drawn ones"
    assert [second for second, _ in retraining.cost] == sorted(second for second, _ in retraining.cost)
    assert [*retraining.cost[-1]] == [pytest.approx(retraining.train_s), retraining.error]
    report = write_scenarios(name, list(found.values()), 1, num_samples, folder=tmp_path)
    pictures = re.findall(r"\]\((.+\.svg)\)", report.read_text())
    assert len(pictures) == 2
    assert all((tmp_path / picture).read_text().startswith("<svg") for picture in pictures)


def test_an_unknown_scenario_is_refused_with_those_there_are() -> None:
    with pytest.raises(SystemExit, match=r"no scenario 'B'; known are .*'B: retraining, cold'"):
        run_proactive(["clicks"], 1, ["B"], report=False)
