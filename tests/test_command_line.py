"""Commands in this process end as those of a process do, and leave no trace in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from modyn.testing.command_line import run_command
from modyn.testing.stack import clean_environment


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["explain", "training.seed"], 0),
        pytest.param(["check", "none.yaml"], 1, marks=pytest.mark.slow),
        pytest.param(["chek"], 2, marks=pytest.mark.slow),
        (["--state-dir", "here", "rm", "r"], 1),
    ],
    ids=["answer", "error", "wrong usage", "question at no terminal"],
)
def test_a_command_ends_as_that_of_a_process_does(tmp_path: Path, arguments: list[str], code: int) -> None:
    variables = clean_environment({"MODYN_STATE_DIR": str(tmp_path / "nothing")})
    before = dict(os.environ), Path.cwd(), sys.argv, sys.stdin, sys.stdout, sys.stderr
    done = run_command(arguments, tmp_path, variables)
    assert (dict(os.environ), Path.cwd(), sys.argv, sys.stdin, sys.stdout, sys.stderr) == before
    command = [sys.executable, "-c", "from modyn.cli.main import main; main()", *arguments]
    alone = subprocess.run(
        command, cwd=tmp_path, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (code, alone.stdout)
    assert done.stderr == alone.stderr.replace("-c", "modyn")
