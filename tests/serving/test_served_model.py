"""Settings of served runs, and the names of their models."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from modyn.errors import ConfigError, InvalidArgumentError
from modyn.serving.served_model import ServedModel, check_distinct, served_model

PIPELINE = {"data": {"dataset_id": "d"}, "serving": {"name": "clicks", "canary_share": 0.1}}


def model(run: str, **options: Any) -> ServedModel:
    return served_model(run, PIPELINE, options)


def test_options_go_before_the_section_and_the_run_is_the_name_of_last_resort() -> None:
    assert (model("clicks-0001").name, model("clicks-0001", name="other").name) == ("clicks", "other")
    assert served_model("clicks-0001", {}, {"name": None}).name == "clicks-0001"
    settings = model("clicks-0001", canary_share=None, follow="promoted").settings
    assert (settings.canary_share, settings.follow) == (0.1, "promoted")
    with pytest.raises(ConfigError, match="serving.canary_share"):
        model("clicks-0001", canary_share=2.0)


@pytest.mark.parametrize("name", ["team/clicks", "..", "a b", "a?b", "a#b", "a%2Fb", "clicks\n", ""])
def test_a_name_that_cannot_stand_in_a_path_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"serving.name: .* is wrong: it is part of URLs"):
        model("clicks-0001", name=name)
    with pytest.raises(ConfigError, match=r"serving.name"):
        served_model("clicks-0001", {"serving": {"name": name}}, {})


def test_observations_that_the_run_cannot_read_are_refused() -> None:
    csv = {"preprocessing": {"format": "csv", "columns": {"a": "number"}, "components": []}, "data": {"dataset_id": "d"}}
    with pytest.raises(ConfigError, match=r"serving.observations: .* the run reads dataset 'd' as CSV"):
        served_model("clicks-0001", csv, {"observations": "d"})
    assert served_model("clicks-0001", csv, {"observations": "other"}).columns is not None


@pytest.mark.parametrize(
    ("runs", "error", "message"),
    [
        ({"a-1": None, "b-1": None}, ConfigError, "runs 'a-1' and 'b-1' would both be model 'clicks'"),
        ({"a-1": "x", "x": "x"}, ConfigError, "write NAME=x, set another serving.name in its pipeline, or serve the two apart"),
        ({"a-1": "x", "b-1": "y"}, None, ""),
    ],
)
def test_each_model_has_a_name_of_its_own(runs: dict[str, str | None], error: type[Exception] | None, message: str) -> None:
    models = [model(run, name=name) for run, name in runs.items()]
    if error is None:
        check_distinct(models)
    else:
        with pytest.raises(error, match=re.escape(message)):
            check_distinct(models)


def test_a_run_is_served_once() -> None:
    with pytest.raises(InvalidArgumentError, match="run 'a-1' is to be served twice"):
        check_distinct([model("a-1", name="x"), model("a-1", name="y")])


@pytest.mark.parametrize("package", ["httptools", "orjson", "uvicorn", "uvloop"])
def test_a_package_of_the_extra_that_is_missing_is_named(package: str) -> None:
    """The test runs in a process that cannot import the package."""
    program = (
        f"import sys\nsys.modules[{package!r}] = None\nsys.argv = ['modyn', 'serve', 'some-run']\n"
        "from modyn.cli.main import main\nmain()\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    said = f"error: serving needs {package}, which is not installed; `pip install modyn[serving]` brings it\n"
    assert (done.returncode, done.stderr) == (1, said)
