"""The checks of a trigger policy as a user sees them, on a real stack: lines of a run, tables, and the client."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest

from modyn.supervisor.client import CheckRecord
from modyn.testing.stack import RunningStack
from tests.support.drifting_data import drifting_dataset, drifting_pipeline

NUM_CHECKS = 12


def trigger(*metrics: str) -> dict[str, Any]:
    quantile = {"id": "DynamicQuantileThresholdCriterion", "window_size": 5, "quantile": 0.1}
    named = {metric: {"id": f"{metric}DriftMetric", "decision_criterion": quantile} for metric in metrics}
    windows = {"id": "AmountWindowingStrategy", "amount_ref": 50, "amount_cur": 50}
    every = {"evaluation_interval_data_points": 50, "on": "payload"}
    return {"id": "DataDriftTrigger", **every, "windowing_strategy": windows, "metrics": named}


@pytest.fixture(scope="module")
def stack(running_stack: RunningStack) -> RunningStack:
    drifting_dataset(running_stack, "checked")
    return running_stack


@pytest.mark.parametrize(
    "metrics",
    [pytest.param(("KS",), marks=pytest.mark.slow), ("KS", "CVM", "Energy", "MeanDistance", "SlicedWasserstein", "MMD")],
)
def test_checks_are_shown_during_and_after_the_run(stack: RunningStack, metrics: tuple[str, ...]) -> None:
    path = stack.folder / "checked.yaml"
    path.write_text(drifting_pipeline("checked", trigger(*metrics)))
    done = stack.modyn("run", path)
    assert done.returncode == 0, done.stderr
    run_id = done.stderr.split()[1]
    lines = [line.partition("  ")[2] for line in done.stderr.splitlines() if "  check after " in line]
    assert len(lines) == NUM_CHECKS
    assert lines[0].startswith("check after 50 samples (1970-01-01 12:00:00): nothing measured; first trigger, fires, ")
    assert f"{sorted(metrics)[0]} 0." in lines[-1]
    assert (" > " in lines[-1]) or (" < " in lines[-1])
    assert ("3 more" in lines[-1]) == (len(metrics) == 6)
    assert max(map(len, lines)) < 190

    header, *rows = [line.split("\t") for line in stack.modyn("show", run_id, "--checks").stdout.splitlines()]
    assert header == ["after samples", "time", "evidence", "verdict", "seconds"]
    assert len(rows) == NUM_CHECKS
    assert rows[0][:4] == ["50", "1970-01-01 12:00:00", "nothing measured", "first trigger, fires"]
    assert [name in rows[-1][2] for name in metrics] == [True] * len(metrics)
    kept = json.loads(stack.modyn("show", run_id, "--checks", "--json").stdout)
    assert [check["position"] for check in kept] == [50 * (number + 1) for number in range(NUM_CHECKS)]
    assert kept[-1]["timestamp"] == 11 * 86_400 + 43_200
    assert {one["series"] for one in kept[-1]["evidence"] if one["threshold"] is not None} == set(metrics)

    with stack.client() as client:
        table = client.checks(run_id)
        assert len(table) == NUM_CHECKS
        assert table["timestamp"].iloc[0] == pd.Timestamp("1970-01-01 12:00", tz="UTC")
        assert [str(table[name].dtype) for name in ("KS", "KS.unusual", "current_samples")] == ["float64", "boolean", "Int64"]
        told = [event.detail.position for event in client.watch(run_id) if isinstance(event.detail, CheckRecord)]
        assert told == table["position"].to_list()
        page = client.report(run_id, stack.folder / "checked.html").read_text()
        assert "<h2>Checks of the trigger policy" in page
