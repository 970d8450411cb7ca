"""Without services, read-only commands read this environment, start nothing and write nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from modyn.cli.context import connect
from modyn.cli.pipelines import check_here, registries
from modyn.config.base import Severity
from modyn.config.yaml_source import load_yaml
from modyn.errors import UnavailableError
from modyn.testing.command_line import run_command
from modyn.testing.stack import clean_environment, tiny_evaluation, tiny_pipeline, tiny_training


def modyn(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(arguments, folder, clean_environment())


def test_a_sound_pipeline() -> None:
    assert check_here(load_yaml(tiny_pipeline("d", evaluation=tiny_evaluation("d")), "p.yaml")) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any folder")
def test_a_report_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(tiny_pipeline("d"))
    (tmp_path / "shut").mkdir(mode=0o555)
    done = modyn(tmp_path, "run", "p.yaml", "--report", "shut/report.html")
    assert done.returncode == 2
    assert "cannot write" in done.stderr


@pytest.mark.slow
def test_a_device_that_this_machine_lacks_is_a_warning(tmp_path: Path) -> None:
    evaluation = {**tiny_evaluation("d"), "device": "cuda:999"}
    text = tiny_pipeline("d", training=tiny_training(device="cuda:999"), evaluation=evaluation)
    found = check_here(load_yaml(text, "p.yaml"))
    assert [(problem.path, problem.severity) for problem in found] == [
        ("training.device", Severity.UNAVAILABLE), ("evaluation.device", Severity.UNAVAILABLE)
    ]  # fmt: skip
    (tmp_path / "p.yaml").write_text(text)
    done = modyn(tmp_path, "check", "p.yaml")
    assert done.returncode == 0, done.stderr
    assert "warning: training.device: 'cuda:999' does not exist" in done.stdout
    assert "p.yaml is valid here, with 2 warnings" in done.stderr
    (found_json, _) = json.loads(modyn(tmp_path, "check", "p.yaml", "--json").stdout)
    assert found_json["severity"] == "unavailable"


@pytest.mark.parametrize(
    ("sections", "path"),
    [
        ({"trigger": {"id": "TimeTriger", "every": "1d"}}, "trigger.id"),
        (
            {"selection_strategy": {"name": "NewDataStrategy", "maximum_keys_in_memory": 0}},
            "selection_strategy.maximum_keys_in_memory",
        ),
        ({"training": tiny_training(optimization_criterion={"name": "NoSuchLoss"})}, "training.optimization_criterion.name"),
        ({"model_storage": {"full_model_strategy": {"name": "NoSuchFormat"}}}, "model_storage.full_model_strategy.name"),
        ({"evaluation": {**tiny_evaluation("d"), "device": "toaster"}}, "evaluation.device"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_section_is_checked_as_by_its_service(sections: dict[str, object], path: str) -> None:
    assert path in [problem.path for problem in check_here(load_yaml(tiny_pipeline("d", **sections), "p.yaml"))]


def test_plugins_of_every_kind() -> None:
    assert {registry.group for registry in registries()} >= {
        "modyn.triggers", "modyn.evaluation_strategies", "modyn.selection", "modyn.presampling", "modyn.downsampling", "modyn.models",
        "modyn.metrics", "modyn.file_formats", "modyn.model_formats", "modyn.preprocessing",
    }  # fmt: skip


def test_commands_that_only_read_start_and_write_nothing(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(tiny_pipeline("d"))
    done = modyn(tmp_path, "check", "p.yaml")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr == "p.yaml is valid here; no services run, so datasets were not checked\n"
    (tmp_path / "bad.yaml").write_text(tiny_pipeline("d", training=tiny_training(optimization_criterion={"name": "NoSuchLoss"})))
    done = modyn(tmp_path, "check", "bad.yaml")
    assert done.returncode == 1
    assert "training.optimization_criterion.name" in done.stdout
    done = modyn(tmp_path, "plugins", "--json")
    assert {"id": "TimeTrigger", "group": "modyn.triggers"}.items() <= next(
        plugin for plugin in json.loads(done.stdout) if plugin["id"] == "TimeTrigger"
    ).items()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.yaml", "p.yaml"]


def test_a_service_that_is_not_there_is_told_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        (tmp_path / "modyn.yaml").write_text(f"supervisor: {{address: '127.0.0.1:{held.getsockname()[1]}'}}\n")
        done = modyn(tmp_path, "--config", "modyn.yaml", "ps")
        # Again in this process, since the time of a program's start depends on the machine.
        monkeypatch.setenv("MODYN_CONFIG", str(tmp_path / "modyn.yaml"))
        with connect() as client:
            started = time.monotonic()
            with pytest.raises(UnavailableError, match="cannot be reached"):
                client.supervisor.runs()
    assert done.returncode == 1
    assert "cannot be reached" in done.stderr
    assert time.monotonic() - started < 10, "as long as clients wait that are to bridge a restart"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "onx"], "'onx' is neither torch nor onnx"),
        (["--format", "onnx"], "name the inputs of the model, for example --input 1,28,28"),
    ],
)
def test_a_format_of_an_export_that_cannot_be(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = modyn(tmp_path, "models", "export", "1", *arguments)
    assert (done.returncode, message in " ".join(done.stderr.replace("│", " ").split())) == (2, True), done.stderr


def test_an_exported_model_does_not_take_the_name_of_its_description(tmp_path: Path) -> None:
    done = modyn(tmp_path, "models", "export", "1", "model.json")
    assert done.returncode == 2
    assert "model.json is the name for the JSON file with the model's class" in " ".join(done.stderr.split())
