"""What every command needs: the options given before it, and a client."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from modyn.client import Client
    from modyn.config.system import SystemConfig
    from modyn.local.stack import StackStatus

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


_ASK_S = 1.0
"""How long commands that only read wait for services of another machine."""


@dataclass
class Options:
    """Given before the command."""

    config_file: Path | None = None


OPTIONS = Options()


def system_config() -> SystemConfig:
    from modyn.config.system import load_system_config

    return load_system_config(config_file())


def config_file() -> Path | None:
    if OPTIONS.config_file is not None:
        return OPTIONS.config_file
    named = os.environ.get("MODYN_CONFIG")
    return Path(named) if named else None


def connect(*, start: bool = False) -> Client:
    """A client. With `start`, the embedded services are started first unless they run, or unless the system file names addresses.

    Without it, services that nobody started are told at once, not after waiting for them.
    """
    from modyn.client import Client
    from modyn.local.stack import stack_status

    client = client_of_this_machine()
    if not is_embedded(client.config):
        # Nobody here brings back a service that is gone; one who only asks is told soon.
        return client if start else Client(config_file() or client.config, wait_s=_ASK_S)
    status = stack_status(client.config)
    if start and status.state != "ready":
        start_services(client)
    elif status.pid is None:
        from modyn.errors import UnavailableError

        raise UnavailableError(
            f"no services run in {client.config.state_dir}: start them with `modyn up`, or name their folder with --state-dir"
        )
    return client


def services_run() -> bool:
    """Whether there are services to ask without starting any."""
    from modyn.local.stack import stack_status

    config = system_config()
    return not is_embedded(config) or stack_status(config).state == "ready"


def client_of_this_machine() -> Client:
    """A client for starting and stopping the services: none of them needs to run."""
    from modyn.client import Client

    return Client(config_file() or system_config())


def is_embedded(config: SystemConfig) -> bool:
    """Whether the services are this machine's to start: none has an address on the network."""
    from modyn.config.system import SERVICES

    return all(config.endpoint(name).is_unix for name in SERVICES)


def start_services(client: Client) -> StackStatus:
    """Starts them and shows what is not healthy yet."""
    shown: set[str] = set()

    def progress(status: StackStatus) -> None:
        for part in status.parts:
            if part.healthy and part.name not in shown:
                shown.add(part.name)
                say(f"  {part.name} is up")

    say(f"starting the services in {client.config.state_dir}")
    return client.up(progress)


def say(text: str) -> None:
    """A line for the person at the terminal; standard output is kept for results."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
