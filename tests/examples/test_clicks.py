"""The scenarios of continuous training run as described on their pages, over one stream that drifts."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.clicks import compare
from examples.clicks.make_data import CHANGE_DAY, DAYS, clicks, make_clicks
from modyn.cli.pipelines import check_here
from modyn.config.yaml_source import load_yaml

HERE = Path(compare.__file__).parent
FILES = ("updates", "retraining", "proactive", "mixed", "mixed_drift")
MAY_DIFFER = {"pipeline", "trigger", "online", "training", "selection_strategy"}


def pipeline(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((HERE / f"{name}.yaml").read_text())
    return found


@pytest.mark.parametrize("name", FILES)
def test_pipelines_are_valid_and_differ_in_how_they_learn_alone(name: str) -> None:
    path = HERE / f"{name}.yaml"
    assert check_here(load_yaml(path.read_text(), str(path))) == []
    found, base = pipeline(name), pipeline("proactive")
    assert {section for section in base if found.get(section) != base[section]} <= MAY_DIFFER


@pytest.mark.parametrize(("name", "path"), compare.INITIAL.items())
def test_initial_models_are_of_the_first_six_days_of_any_number_of_rows(name: str, path: str) -> None:
    found: Any = pipeline(name)
    for key in path.split("."):
        found = found[key]
    assert found == 30_000 // 10, "as of the number of rows that is made by default"
    first_day = pipeline(name)["evaluation"]["handlers"][0]["strategy"]["eval_start_from"]
    rows = [row for day in list(clicks(600))[:6] for row in day]
    assert len(rows) == 600 // 10
    assert rows[-1]["time"] < datetime.fromisoformat(f"{first_day}T00:00:00+00:00").timestamp()


def test_clicks_are_their_seed(tmp_path: Path) -> None:
    assert make_clicks(tmp_path / "a", 600) == make_clicks(tmp_path / "b", 600) == 600
    files = sorted((tmp_path / "a").iterdir())
    assert len(files) == DAYS > CHANGE_DAY
    assert [file.read_bytes() for file in files] == [(tmp_path / "b" / file.name).read_bytes() for file in files]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_scenarios_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare.main(
        ["--rows", "6000", "--only", "mixed", "--only", "mixed_drift", "--only", "updates", "--folder", str(tmp_path / "demo")]
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": error")[0] for line in lines[1:5]] == [
        "A: updates",
        "A: updates, statistics of the initial model",
        "mixed, by accuracy",
        "mixed, by drift",
    ]
    num_retrainings = [int(line.split(" versions, ")[1].split()[0]) for line in lines[1:5]]
    assert num_retrainings[:2] == [1, 1], "the initial model"
    assert min(num_retrainings[2:]) > 1, "both policies have fired after it"
    page = (tmp_path / "demo" / "scenarios.html").read_text()
    assert page.count("Plotly.newPlot(document") == 2
    assert "<td>A: updates</td>" in page
