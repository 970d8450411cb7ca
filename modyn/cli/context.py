"""Options and functions that the commands share, for example to open a client."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from modyn.client import Client
    from modyn.config.system import SystemConfig
    from modyn.local.control import StackStatus

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

_ASK_S = 1.0
"""Seconds for which read-only commands wait for services of another machine."""


def system_config() -> SystemConfig:
    """Load the system configuration that this command uses. Raises: ConfigError."""
    from modyn.config.system import load_system_config

    return load_system_config()


def config_file() -> Path | None:
    """Return the configuration file, which $MODYN_CONFIG names (`--config` sets the variable). None: the defaults are used."""
    named = os.environ.get("MODYN_CONFIG")
    return Path(named) if named else None


def connect(*, start: bool = False) -> Client:
    """Open a client.

    Args: start: start the embedded services first, unless they are running or the system file names addresses.
    Raises: UnavailableError, without a wait: no services run here and `start` is false.
    """
    from modyn.client import Client
    from modyn.local.control import stack_status

    client = client_of_this_machine()
    if not is_embedded(client.config):
        # This machine cannot restart services of another machine, so read-only commands wait only briefly.
        return client if start else Client(config_file(), wait_s=_ASK_S)
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
    """Return whether the embedded services are ready; true for services with network addresses. Starts no service."""
    from modyn.local.control import stack_status

    config = system_config()
    return not is_embedded(config) or stack_status(config).state == "ready"


def client_of_this_machine() -> Client:
    """Open a client that starts or stops the services of this machine. The services need not be running."""
    from modyn.client import Client

    return Client(config_file())


def is_embedded(config: SystemConfig) -> bool:
    """Return whether the services are embedded: this machine starts them, because no service has a network address."""
    from modyn.config.system import SERVICES

    return all(config.endpoint(name).is_unix for name in SERVICES)


def start_services(client: Client) -> StackStatus:
    """Start the embedded services, and print the name of each service when the service becomes healthy."""
    shown: set[str] = set()

    def progress(status: StackStatus) -> None:
        for part in status.parts:
            if part.healthy and part.name not in shown:
                shown.add(part.name)
                say(f"  {part.name} is up")

    say(f"starting the services in {client.config.state_dir}")
    return client.up(progress)


def say(text: str) -> None:
    """Print a line to standard error; standard output is for results."""
    from modyn.cli.views.output import printable

    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()
