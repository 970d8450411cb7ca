"""Off loopback: nothing starts without TLS and token, everything works with them, and calls that lack one of them are refused."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
import pytest
import trustme
import yaml

from modyn.config.system import SERVICES
from modyn.config.system_sections.endpoint import Endpoint
from modyn.config.system_sections.security import SecurityConfig
from modyn.errors import SecurityError, UnavailableError
from modyn.evaluator.client import EvaluatorClient
from modyn.model_storage.client import ModelStorageClient
from modyn.rpc.channel import is_serving
from modyn.selector.client import SelectorClient
from modyn.storage.client import StorageClient
from modyn.storage.flight.client import FetchLimits, PayloadClient
from modyn.supervisor.client import RunState, SupervisorClient
from modyn.testing.stack import RunningStack, clean_environment, tiny_evaluation, tiny_pipeline, tiny_training
from modyn.testing.waiting import PATIENCE_S, eventually
from modyn.trainer_server.client import TrainerServerClient
from tests.support.comparison import RunOutcome, differences, outcome

TOKEN = "a token that nobody guesses"

CALLS: dict[str, Callable[[Endpoint], object]] = {
    "storage": lambda endpoint: StorageClient(endpoint).list_datasets(),
    "selector": lambda endpoint: SelectorClient(endpoint).plugins(),
    "model_storage": lambda endpoint: ModelStorageClient(endpoint).list(),
    "trainer_server": lambda endpoint: TrainerServerClient(endpoint).plugins(),
    "evaluator": lambda endpoint: EvaluatorClient(endpoint).plugins(),
    "supervisor": lambda endpoint: SupervisorClient(endpoint).runs(),
    "flight": lambda endpoint: list(PayloadClient(endpoint, limits=FetchLimits(retry_s=0)).fetch("numbers", np.arange(1))),
}


def own_address() -> str:
    """An address of this machine that others may reach; all of them where there is no other than loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        # Connecting a datagram socket sends nothing; it only asks which way the packets would go.
        probe.connect(("192.0.2.1", 9))
        address: str = probe.getsockname()[0]
        if not address.startswith("127."):
            return address
    return "0.0.0.0"


def free_ports(host: str, count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((host, 0))
        return [one.getsockname()[1] for one in sockets]


def on_ports(own_stack: Callable[..., RunningStack], host: str, dataset_roots: Sequence[Path], **more: Any) -> RunningStack:
    """A stack with every service, and the payload server, on a port of `host`."""

    def start() -> RunningStack:
        flight, *ports = free_ports(host, len(SERVICES) + 1)
        sections: dict[str, Any] = {name: {"address": f"{host}:{port}"} for name, port in zip(SERVICES, ports, strict=True)}
        sections["storage"] |= {"flight_address": f"{host}:{flight}", "dataset_roots": [str(root) for root in dataset_roots]}
        return own_stack(**sections, **more)

    try:
        return start()
    except UnavailableError as error:
        # Between the look and the start another process may have taken one.
        if "cannot listen" not in error.message:
            raise
        return start()


def security_section(folder: Path, host: str) -> dict[str, str]:
    """Certificates for `host` in files, and a token."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued = authority.issue_cert(host)
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    (folder / "token").write_text(TOKEN)
    files = {"tls_cert": "cert.pem", "tls_key": "key.pem", "tls_ca": "ca.pem", "token_file": "token"}
    return {field: str(folder / name) for field, name in files.items()}


def small_run(stack: RunningStack) -> RunOutcome:
    stack.tiny_dataset("numbers")
    run = stack.run(tiny_pipeline("numbers", training=tiny_training(dataloader_workers=1), evaluation=tiny_evaluation("numbers")))
    assert run.state is RunState.FINISHED, run.error
    with stack.client() as client:
        return outcome(client, run.run_id)


@pytest.mark.slow
def test_with_tls_and_token_a_run_works_off_loopback_and_others_are_refused(
    own_stack: Callable[..., RunningStack], tmp_path_factory: pytest.TempPathFactory
) -> None:
    host, folder = own_address(), tmp_path_factory.mktemp("security")
    stack = on_ports(own_stack, host, [Path(gettempdir())], security=security_section(folder, host))
    found = small_run(stack)
    assert [t.num_keys for t in found.triggers] == [50, 50]
    assert len(found.evaluations) == 4

    known = stack.config.security
    wrong_token = SecurityConfig(tls_ca=known.tls_ca, token="x" * 30)
    no_token = SecurityConfig(tls_ca=known.tls_ca)
    no_tls = SecurityConfig(token=TOKEN)
    other = folder / "other"
    other.mkdir()
    wrong_authority = SecurityConfig(tls_ca=Path(security_section(other, host)["tls_ca"]), token=TOKEN)
    for name, call in CALLS.items():
        endpoint = stack.config.endpoint(name)
        assert endpoint.address.startswith(host)
        call(endpoint)
        for intruder in (wrong_token, no_token):
            with pytest.raises(SecurityError, match="token"):
                call(endpoint.model_copy(update={"security": intruder}))
        if name == "flight":
            for intruder in (no_tls, wrong_authority):
                with pytest.raises(UnavailableError):
                    call(endpoint.model_copy(update={"security": intruder}))
        else:
            eventually(partial(is_serving, endpoint.model_copy(update={"security": no_token})))
            for intruder in (no_tls, wrong_authority):
                assert not is_serving(endpoint.model_copy(update={"security": intruder}))


@pytest.mark.exhaustive
def test_on_loopback_ports_a_run_works_without_tls(own_stack: Callable[..., RunningStack], running_stack: RunningStack) -> None:
    """Its decisions equal those of a run over Unix sockets."""
    stack = on_ports(own_stack, "127.0.0.1", [])
    assert {stack.config.endpoint(name).address.split(":")[0] for name in CALLS} == {"127.0.0.1"}
    with running_stack.client() as client:
        if "numbers" in set(client.datasets()["name"]):
            client.delete_dataset("numbers")
    assert differences(small_run(running_stack), small_run(stack)) == []


@pytest.mark.parametrize(
    "name", ["storage", *(pytest.param(name, marks=pytest.mark.slow) for name in SERVICES if name != "storage")]
)
def test_a_service_does_not_start_off_loopback_without_them(name: str, tmp_path: Path, postgres_url: str) -> None:
    done = start(name, tmp_path, postgres_url, **{name: {"address": "0.0.0.0:0"}})
    assert done.returncode == 1
    reason = f"{name} will not listen on 0.0.0.0:0, which other machines can reach, without tls_cert and tls_key and token; "
    assert reason in done.stderr


@pytest.mark.parametrize(
    ("given", "missing"), [pytest.param("token_file", "tls_cert and tls_key", marks=pytest.mark.slow), ("tls", "token")]
)
def test_one_of_them_is_not_enough(given: str, missing: str, tmp_path: Path, postgres_url: str) -> None:
    security = {field: path for field, path in security_section(tmp_path, "0.0.0.0").items() if field.startswith(given)}
    done = start("selector", tmp_path, postgres_url, security=security, selector={"address": "0.0.0.0:0"})
    assert done.returncode == 1
    assert f"without {missing}; " in done.stderr


def test_storage_does_not_serve_payloads_off_loopback_without_them(tmp_path: Path, postgres_url: str) -> None:
    done = start("storage", tmp_path, postgres_url, storage={"flight_address": "0.0.0.0:0", "dataset_roots": ["/"]})
    assert done.returncode == 1
    assert "payload server will not listen on 0.0.0.0:0" in done.stderr
    assert "without tls_cert and tls_key and token" in done.stderr


def test_storage_does_not_start_off_loopback_without_roots_for_datasets(tmp_path: Path, postgres_url: str) -> None:
    """Any folder of the machine could be read through it."""
    security = security_section(tmp_path, "0.0.0.0")
    done = start("storage", tmp_path, postgres_url, security=security, storage={"address": "0.0.0.0:0"})
    assert done.returncode == 1
    assert "dataset_roots" in done.stderr


def test_the_stack_says_what_is_missing(own_stack: Callable[..., RunningStack]) -> None:
    with pytest.raises(
        UnavailableError, match=r"selector will not listen on 0\.0\.0\.0:0.* without tls_cert and tls_key and token"
    ):
        own_stack(selector={"address": "0.0.0.0:0"})


def start(name: str, folder: Path, postgres_url: str, **sections: Any) -> subprocess.CompletedProcess[str]:
    """The process of one service, to its end."""
    path = folder / "system.yaml"
    path.write_text(yaml.safe_dump({"state_dir": str(folder / "state"), "database_url": postgres_url, **sections}))
    command = [sys.executable, "-m", "modyn.rpc", name, "--config", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=clean_environment())
