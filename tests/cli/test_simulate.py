"""`modyn simulate`: refusals before a service is asked, output, and Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from modyn.analysis.simulation import simulation_table
from modyn.analysis.simulation_report import MAX_MARKS, render_simulation, times_figure
from modyn.cli import simulate
from modyn.cli.main import app
from modyn.cli.simulate import _Progress, _without_formulas, _write, print_simulation
from modyn.records import SampleBatch
from modyn.supervisor.simulation.engine import SimulatedPolicy, Simulation
from modyn.supervisor.simulation.run_simulation import SimulationProgress
from modyn.supervisor.simulation.training_forecast import TrainingForecast
from modyn.supervisor.triggers import build_trigger
from modyn.supervisor.triggers.measures.training_seconds import TrainingSeconds


@pytest.fixture
def table() -> pd.DataFrame:
    """Two policies on a hundred days of ten samples each; the second policy never triggers."""
    forecast = TrainingForecast(seconds=TrainingSeconds(1.0))
    sections: dict[str, dict[str, object]] = {
        "weekly <b>": {"id": "TimeTrigger", "every": "1w"},
        "never": {"id": "DataAmountTrigger", "num_samples": 10**6},
    }
    simulation = Simulation({name: SimulatedPolicy(build_trigger(section), forecast) for name, section in sections.items()})
    times = np.arange(1000) // 10 * 86_400
    simulation.process(SampleBatch(np.arange(1000), times, times))
    return simulation_table(simulation, [str(section["id"]) for section in sections.values()])


def test_a_typo_is_reported_before_any_service_is_started(tmp_path: Path) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text("policies:\n  a: {id: DataAmountTrigger, num_sample: [5, 10]}\n")
    done = CliRunner(env={"MODYN_STATE_DIR": str(tmp_path / "state")}).invoke(app, ["simulate", str(file), "--dataset", "d"])
    assert done.exit_code == 1
    assert f"{file}:2: policies.a.num_sample: there is no such key, did you mean 'num_samples'?" in str(done.exception)
    assert not (tmp_path / "state").exists()
    done = CliRunner().invoke(app, ["simulate", str(file), "--dataset", "d", "--json", "--csv"])
    assert done.exit_code == 2


def test_a_policy_is_a_line(table: pd.DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    print_simulation(table)
    assert capsys.readouterr().out.splitlines() == [
        "policy\ttriggers\tchecks\tsamples trained\ttraining s\tmean waiting",
        "weekly <b>\t14\t0\t980\t14.0000\t3.0 d",
        "never\t0\t0\t0\t0.0000\t49.5 d",
    ]
    table["estimated Accuracy"], table["scored Accuracy"], table["pareto"] = [0.5, float("nan")], [0.75, 0.0], [True, False]
    table.attrs["notes"] = ["estimated Accuracy: mean over 3 of 4 intervals"]
    print_simulation(table)
    output = capsys.readouterr()
    assert "weekly <b>\t14\t0\t980\t14.0000\t0.5000\t0.7500\t3.0 d\tyes" in output.out
    assert "mean over 3 of 4 intervals" in output.err
    table["failed"] = ["", "after 3 samples: it diverged"]
    print_simulation(table)
    assert capsys.readouterr().out.splitlines()[2].endswith("\tafter 3 samples: it diverged")
    assert "nearest model before" in output.err


def test_trainings_have_a_price_where_an_hour_has_one(capsys: pytest.CaptureFixture[str]) -> None:
    forecast = TrainingForecast(seconds=TrainingSeconds(1800.0))
    simulation = Simulation({"p": SimulatedPolicy(build_trigger({"id": "DataAmountTrigger", "num_samples": 3}), forecast)})
    simulation.note = forecast.note
    simulation.process(SampleBatch(np.arange(10), np.arange(10), np.arange(10)))
    priced = simulation_table(simulation, ["DataAmountTrigger"], price_per_hour=4.0)
    assert priced["price"].to_list() == [3 * 0.5 * 4.0]
    print_simulation(priced)
    output = capsys.readouterr()
    assert "training s\tprice\tmean waiting" in output.out
    assert "training_s: 1.8e+03 s a trigger and 0 s a thousand samples of its trigger set, as given" in output.err
    assert "as given" in render_simulation(priced, "d")


def test_results_are_written_as_files(table: pd.DataFrame, tmp_path: Path) -> None:
    _write(table, "dataset d", tmp_path, tmp_path / "page.html")
    policies = pd.read_csv(tmp_path / "policies.csv")
    assert policies["triggers"].to_list() == [14, 0]
    assert policies["positions"][0].split()[:2] == ["70", "140"]
    assert [int(time) for time in policies["times"][0].split()][:2] == [6 * 86_400, 13 * 86_400]
    triggers = pd.read_csv(tmp_path / "triggers.csv")
    assert triggers.iloc[0].to_list() == ["weekly <b>", 70, 6 * 86_400]
    assert len(triggers) == 14
    assert (tmp_path / "page.html").read_text() == (tmp_path / "simulation.html").read_text()


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "+1+1", "-1+1", "@SUM(1)", "\t=1", "\n=1", "＝1"])
def test_no_text_of_a_csv_file_is_a_formula_to_a_spreadsheet(table: pd.DataFrame, tmp_path: Path, name: str) -> None:
    table.loc[0, "policy"], table[f"{name} "], table["number"] = name, "-x", -1.5
    _write(table, "dataset d", tmp_path, None)
    for found in (_without_formulas(table), pd.read_csv(tmp_path / "policies.csv"), pd.read_csv(tmp_path / "triggers.csv")):
        assert found["policy"][0] == f"'{name}"
    policies = pd.read_csv(tmp_path / "policies.csv")
    assert (policies[f"'{name} "][0], policies["number"][0]) == ("'-x", -1.5)


def test_the_page_shows_all_policies_and_escapes_their_names(table: pd.DataFrame) -> None:
    table["estimated Accuracy"] = [0.5, float("nan")]
    page = render_simulation(table, "dataset <d>")
    assert "dataset &lt;d&gt;" in page
    assert "weekly <b>" not in page
    assert "Cost and estimated Accuracy" in page
    table["times"] = pd.Series([list(range(10**4)), []], dtype=object)
    (marks,) = times_figure(table).data
    assert len(marks["x"]) == MAX_MARKS
    assert sum(marks["customdata"]) == 10**4


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([], "interrupted before any sample was simulated"),
        ([SimulationProgress(1_500, 4_000, 2.0, 3)], "interrupted after 1,500 of 4,000 samples through 3 policies"),
    ],
)
def test_ctrl_c_says_how_far_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: list[SimulationProgress], said: str
) -> None:
    class Interrupted:
        """A client whose user presses Ctrl-C after these steps."""

        def simulate(self, *_: object, progress: Callable[[SimulationProgress], None], **__: object) -> None:
            for step in steps:
                progress(step)
            raise KeyboardInterrupt

    monkeypatch.setattr(simulate, "connect", lambda **_: nullcontext(Interrupted()))
    file = tmp_path / "policies.yaml"
    file.write_text("policies:\n  a: {id: DataAmountTrigger, num_samples: 5}\n")
    done = CliRunner().invoke(app, ["simulate", str(file), "--dataset", "d"])
    assert done.exit_code != 0
    assert said in done.stderr.splitlines()


def test_progress_is_shown_with_the_seconds_that_are_left(capsys: pytest.CaptureFixture[str]) -> None:
    _Progress().show(SimulationProgress(100, 400, 2.0, 3))
    assert capsys.readouterr().err == "100 of 400 samples through 3 policies, 6 s left\n"
