"""Environment variables that user code may see."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from modyn.rpc.environment import keep_allowed
from modyn.testing.waiting import PATIENCE_S


def test_what_libraries_read_stays_and_secrets_go() -> None:
    environment = dict.fromkeys(
        (
            *("PATH", "HOME", "LC_ALL", "PYTHONPATH", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TORCH_LOGS", "HF_HOME"),
            *(
                "MODYN_DATABASE_URL",
                "MODYN_SECURITY__TOKEN",
                "POSTGRES_PASSWORD",
                "PGPASSWORD",
                "AWS_SECRET_ACCESS_KEY",
                "MY_TOKEN",
                *("NVIDIA_API_KEY", "GRPC_AUTH_TOKEN", "PYTHON_KEYRING_PASSWORD", "ARROW_FLIGHT_SECRET", "TRITON_CREDENTIALS"),
            ),
        ),
        "value",
    )
    keep_allowed(environment, ["HF_*"])
    kept = {"PATH", "HOME", "LC_ALL", "PYTHONPATH", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "TORCH_LOGS", "HF_HOME"}
    assert environment.keys() == kept
    asked_for = dict.fromkeys(("HF_TOKEN", "NVIDIA_API_KEY", "PATH"), "value")
    keep_allowed(asked_for, ["HF_*"])
    assert asked_for.keys() == {"HF_TOKEN", "PATH"}


def test_modules_of_the_current_folder_are_found_and_stand_for_no_others(tmp_path: Path) -> None:
    for name in ("only_here", "colorsys", "runner"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('this is no module of Python')" if name == "colorsys" else "")
    program = (
        "from modyn.rpc.environment import look_here_last\nlook_here_last()\nlook_here_last()\nimport colorsys, only_here, sys\n"
    )
    program += "print(sys.path.count(__import__('os').getcwd()), only_here.__file__)"
    (tmp_path / "runner.py").write_text(program)
    for options in (["-m", "runner"], ["-P", "-c", program]):
        done = subprocess.run(
            [sys.executable, *options], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert (done.stdout, done.stderr) == (f"1 {tmp_path / 'only_here.py'}\n", "")
