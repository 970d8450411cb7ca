"""The example plug-in, installed as a user installs one, is used by the real services."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from modyn.testing.stack import (
    NUM_CLASSES,
    NUM_FEATURES,
    RunningStack,
    clean_environment,
    tiny_evaluation,
    tiny_pipeline,
)
from tests.support.shared_stack import EXAMPLE

IMAGE_PARSER = f"""\
import torch

def bytes_parser_function(data: memoryview) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(1, 1, {NUM_FEATURES})
"""


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """A folder with the package as installed by pip, made without a network and without changing the sources."""
    with tempfile.TemporaryDirectory(prefix="modyn-plugin-") as name:
        folder = Path(name)
        copy = folder / "source"
        for file in EXAMPLE.rglob("*"):
            if file.suffix in (".py", ".toml", ".md") and "build" not in file.parts:
                (copy / file.relative_to(EXAMPLE)).parent.mkdir(parents=True, exist_ok=True)
                (copy / file.relative_to(EXAMPLE)).write_bytes(file.read_bytes())
        subprocess.run(
            [
                sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
                "--disable-pip-version-check", "--target", str(folder / "site"), str(copy),
            ],
            check=True, timeout=120, capture_output=True,
        )  # fmt: skip
        yield folder / "site"


def test_pip_installs_what_the_services_of_these_tests_find(installed: Path, running_stack: RunningStack) -> None:
    def content(folder: Path) -> dict[str, object]:
        (found,) = [each for each in distributions(path=[str(folder)]) if each.name == "modyn-example-plugin"]
        code = {file.name: file.read_text() for file in (folder / "modyn_example_plugin").glob("*.py")}
        return {**code, "version": found.version, "ids": sorted(map(repr, found.entry_points))}

    assert running_stack.plug_ins is not None
    assert content(installed) == content(running_stack.plug_ins)


@pytest.mark.slow
def test_it_passes_the_checks_that_it_ships(installed: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(EXAMPLE / "tests")],
        capture_output=True, text=True, timeout=120, env=clean_environment({"PYTHONPATH": str(installed)}), cwd=installed, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_both_parts_are_listed_with_their_package(running_stack: RunningStack) -> None:
    found = {p["id"]: p for p in json.loads(running_stack.modyn("plugins", "--json").stdout)}
    assert found["LabelShiftTrigger"] == {
        "group": "modyn.triggers", "id": "LabelShiftTrigger", "distribution": "modyn-example-plugin",
        "path": "modyn_example_plugin.label_shift:LabelShiftTrigger", "problem": "",
    }  # fmt: skip
    assert found["TinyConvNet"]["distribution"] == "modyn-example-plugin"
    assert found["TimeTrigger"]["distribution"] == "modyn"


def test_a_run_uses_both(running_stack: RunningStack) -> None:
    running_stack.tiny_dataset("plugged", num_samples=60, num_files=2)
    data = {"dataset_id": "plugged", "bytes_parser_function": IMAGE_PARSER}
    evaluation = tiny_evaluation("plugged")
    evaluation["datasets"][0]["bytes_parser_function"] = IMAGE_PARSER  # type: ignore[index]
    run = running_stack.run(
        tiny_pipeline(
            "plugged",
            data=data,
            model={"id": "TinyConvNet", "config": {"num_classes": NUM_CLASSES}},
            trigger={"id": "LabelShiftTrigger", "window": 10, "distance": 0.1},
            evaluation=evaluation,
        )
    )
    assert run.state == "finished", run.error
    with running_stack.client() as client:
        # The first window always fires; labels are random, so others differ from it by more than 0.1 sooner or later.
        assert run.num_triggers >= 2
        assert client.triggers(run.run_id)["position"].to_list()[0] == 10
        assert set(client.models(run.run_id)["model_class"]) == {"TinyConvNet"}
        assert client.evaluations(run.run_id)["value"].notna().all()


def test_a_drift_trigger_measures_with_its_distance(running_stack: RunningStack) -> None:
    running_stack.tiny_dataset("measured", num_samples=60, num_files=2)
    criterion = {"id": "ThresholdDecisionCriterion", "threshold": 1e9}
    drift: dict[str, Any] = {"id": "DataDriftTrigger", "evaluation_interval_data_points": 20}
    metric = {"id": "MedianDistance", "norm": "l1", "decision_criterion": criterion}
    run = running_stack.run(tiny_pipeline("measured", trigger={**drift, "metrics": {"moved": metric}}))
    assert run.state == "finished", run.error
    with running_stack.client() as client:
        distances = [check.numbers["moved"] for check in client.supervisor.checks(run.run_id) if "moved" in check.numbers]
    assert len(distances) == 2
    assert min(distances) > 0
    judged = {**metric, "decision_criterion": {"id": "PValueDecisionCriterion"}}
    done = running_stack.modyn("check", running_stack.pipeline_file("measured", trigger={**drift, "metrics": {"moved": judged}}))
    assert "PValueDecisionCriterion judges p-values, and MedianDistance gives none" in done.stdout


def test_its_options_are_checked_by_the_service_that_has_it(running_stack: RunningStack) -> None:
    done = running_stack.modyn("check", running_stack.pipeline_file("plugged", trigger={"id": "LabelShiftTrigger", "windo": 10}))
    assert done.returncode == 1
    assert "trigger.windo: there is no such key, did you mean 'window'?" in done.stdout


@pytest.mark.slow
def test_the_schema_knows_it(running_stack: RunningStack) -> None:
    schema = running_stack.modyn("schema", process=True, environment={"PYTHONPATH": str(running_stack.plug_ins)})
    triggers = json.loads(schema.stdout)["properties"]["trigger"]["oneOf"]
    assert "LabelShiftTrigger" in {variant["title"] for variant in triggers}
