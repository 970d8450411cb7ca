"""A service as a process: what is wrong with its configuration is told in one line, by all of them alike."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from modyn.rpc.__main__ import main


def test_each_service_is_started_by_its_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "modyn.rpc", "storage", "--help"]
    usage = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert usage.startswith("usage: python -m modyn.rpc ")
    for service in ("storage", "selector", "model_storage", "trainer_server", "evaluator", "supervisor"):
        monkeypatch.setattr(sys, "argv", ["modyn.rpc", service, "--help"])
        with pytest.raises(SystemExit, match="0"):
            main()
        assert capsys.readouterr().out == usage


def test_a_wrong_configuration_is_told_before_anything_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "system.yaml"
    path.write_text("storage: {poll_intervall_s: 1}")
    monkeypatch.setattr(sys, "argv", ["modyn.rpc", "storage", "--config", str(path)])
    monkeypatch.setattr("modyn.rpc.__main__.load_object", pytest.fail)
    assert main() == 1
    told = capsys.readouterr().err
    assert told.startswith("modyn storage: ")
    assert "poll_interval_s" in told
