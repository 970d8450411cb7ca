"""Files that `modyn logs` reads, and lines that it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modyn.cli.services import _mention, _of_workers, _print_logs
from modyn.config.system import load_system_config


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('{"run_id": "digits-0001"}', True),
        ("runs/digits-0001/training-0.log", True),
        ("done with digits-0001.", True),
        ('{"run_id": "digits-00010"}', False),
        ('{"run_id": "big-digits-0001"}', False),
        ('{"run_id": "x.digits-0001"}', False),
    ],
)
def test_a_run_is_not_taken_for_one_with_a_longer_name(line: str, found: bool) -> None:
    assert bool(_mention("digits-0001").search(line)) is found


def test_logs_of_a_run_lie_in_its_folder_and_are_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODYN_STATE_DIR", str(tmp_path))
    config = load_system_config(None)
    for run in ("digits-0001", "digits-00010"):
        folder = config.log_dir / "runs" / run
        folder.mkdir(parents=True)
        for name in ("training-10", "training-2", "evaluation-0"):
            (folder / f"{name}.log").touch()
    found = _of_workers(config, "digits-0001")
    assert [part for part, _ in found.values()] == ["evaluation-0", "training-2", "training-10"]
    assert {path.parent.name for path in found} == {"digits-0001"}


def test_lines_come_as_they_are_or_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    service, worker = tmp_path / "storage.log", tmp_path / "training-0.log"
    service.write_text('{"event": "r-1"}\n{"event": "r-10"}\nr-1 in words\nr-1 half a li')
    worker.write_text("one\ntwo\n")
    logs = {service: ("storage", _mention("r-1")), worker: ("training-0", None)}
    _print_logs(lambda: logs, lines=5, follow=False, json=False)
    assert capsys.readouterr().out.splitlines() == [
        "storage: r-1", "storage: r-1 in words", "training-0: one", "training-0: two",
    ]  # fmt: skip
    _print_logs(lambda: logs, lines=1, follow=False, json=True)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"part": "storage", "line": "r-1 in words"}, {"part": "training-0", "line": "two"},
    ]  # fmt: skip
    _print_logs(lambda: {worker: logs[worker]}, lines=0, follow=False, json=False)
    assert capsys.readouterr().out == ""


def test_lines_in_older_files_of_a_log_are_printed_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "storage.log"
    (tmp_path / "storage.log.2").write_text("r-1 oldest\n")
    (tmp_path / "storage.log.1").write_text("r-2\nr-1 older\n")
    log.write_text("r-1 newest\n")
    _print_logs(lambda: {log: ("storage", _mention("r-1"))}, lines=5, follow=False, json=False)
    assert capsys.readouterr().out.splitlines() == ["r-1 oldest", "r-1 older", "r-1 newest"]
