"""Reports that the programs of `benchmark.evidence` write from the outcomes of runs."""

from __future__ import annotations

import json

import pytest

from benchmark.evidence.selections import Outcome, table_of
from benchmark.evidence.streams import SELECTION_STREAMS
from benchmark.machine import REPORTS


@pytest.mark.parametrize(
    ("stream", "columns"), [("shifted", ["before, %", "in, %", "after, %", "all, %"]), ("noisy", ["all, %"])]
)
def test_a_table_has_columns_of_a_shift_where_there_is_one(stream: str, columns: list[str]) -> None:
    accuracies: list[float | None] = [None, 0.2, 0.4, 0.5, 0.5, 0.5, 0.7, 0.8, 0.9]
    outcomes = [Outcome(stream, "Random", "50 %", seed, accuracies, 100 + seed, 2.0) for seed in range(3)]
    header, _, row = [line.strip("| ").split(" | ") for line in table_of(SELECTION_STREAMS[stream], outcomes).splitlines()]
    assert header == ["policy", "share", *columns, "samples trained", "training, s"]
    spreads = {"before, %": "30.0 (30.0–30.0)", "in, %": "50.0 (50.0–50.0)", "after, %": "80.0 (80.0–80.0)"}
    means = [spreads[name] for name in columns[:-1]]
    assert row == ["Random", "50 %", *means, "56.2 (56.2–56.2)", "101", "2.0"]


def test_the_table_of_a_report_is_that_of_its_outcomes() -> None:
    """The report of the stream with a shift equals the program's output for the outcomes stored next to the report."""
    name = "2026-11-24-evidence-selection-shifted"
    outcomes = [Outcome(**one) for one in json.loads((REPORTS / f"{name}.json").read_text())]
    assert table_of(SELECTION_STREAMS["shifted"], outcomes) in (REPORTS / f"{name}.md").read_text()
