"""A service as a process: what is wrong with its configuration is told in one line, by all of them alike."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from modyn.rpc.main import service_main


@pytest.mark.parametrize("service", ["storage", "selector", "model_storage", "trainer_server", "evaluator", "supervisor"])
def test_each_service_is_started_by_its_name(service: str) -> None:
    command = [sys.executable, "-m", f"modyn.{service}", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith(f"usage: python -m modyn.{service} ")


def test_a_wrong_configuration_is_told_before_anything_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "system.yaml"
    path.write_text("storage: {poll_intervall_s: 1}")
    monkeypatch.setattr(sys, "argv", ["modyn.storage", "--config", str(path)])
    assert service_main("storage", "no_such_package:build") == 1
    told = capsys.readouterr().err
    assert told.startswith("modyn storage: ")
    assert "poll_interval_s" in told
