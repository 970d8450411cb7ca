"""The probe with a real server that uses the certificate and requires the token of `deploy/make-secrets.sh`."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from modyn.config.system import load_system_config
from modyn.rpc.probe import main
from modyn.rpc.server import start_server

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def system_file(tmp_path: Path) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    command = [str(ROOT / "deploy" / "make-secrets.sh"), str(tmp_path / "groups"), "services:admin:storage"]
    subprocess.run(command, check=True, capture_output=True)
    secrets = tmp_path / "groups" / "services"
    files = {
        "tls_cert": "server.crt",
        "tls_key": "server.key",
        "tls_ca": "ca.crt",
        "token_file": "token",
        "accepted_file": "accepted",
    }
    values = {
        "state_dir": str(tmp_path / "state"),
        "security": {field: str(secrets / name) for field, name in files.items()},
        "selector": {"address": f"localhost:{free_port()}"},
    }
    path = tmp_path / "modyn.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture
def _selector(system_file: Path) -> Iterator[None]:
    server = start_server("selector", load_system_config(system_file).endpoint("selector"), [])
    yield
    server.stop(0)


@pytest.mark.usefixtures("_selector")
def test_a_healthy_service(system_file: Path) -> None:
    assert main(["selector", "--config", str(system_file)]) == 0


def test_a_service_that_is_not_there(system_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selector", "--config", str(system_file), "--timeout", "0.2"]) == 1
    assert "selector at localhost:" in capsys.readouterr().err


def test_a_configuration_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selector", "--config", str(tmp_path / "none.yaml")]) == 1
    assert "none.yaml" in capsys.readouterr().err
