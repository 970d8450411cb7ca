"""`modyn up`, `down`, `status`: the services on this machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import typer

from modyn.cli.context import Json, client_of_this_machine, is_embedded, say, start_services, system_config
from modyn.cli.output import print_json, print_table

if TYPE_CHECKING:
    from modyn.config.system import SystemConfig


def add_to(app: typer.Typer) -> None:
    for command in (up, down, status):
        app.command()(command)


def up() -> None:
    """Start all services on this machine, or those of them that died."""
    with client_of_this_machine() as client:
        started = time.perf_counter()
        status_now = start_services(client)
        say(f"{len(status_now.parts)} parts are healthy after {time.perf_counter() - started:.1f} s; `modyn down` stops them")


def down() -> None:
    """Stop the services. Runs are interrupted and can be resumed; nothing is lost."""
    with client_of_this_machine() as client:
        say("stopped" if client.down() else f"no services run in {client.config.state_dir}")


def status(json: Json = False) -> None:
    """Show every service: whether it is healthy, its process and its address. Exit code 1 unless all are healthy."""
    rows = _rows(system_config())
    if json:
        print_json(rows)
    else:
        print_table(
            ["service", "health", "process", "restarts", "address"],
            [
                [r["name"], "healthy" if r["healthy"] else "down", str(r["pid"] or "–"), str(r["restarts"]), r["address"]]
                for r in rows
            ],
        )
    if not all(row["healthy"] for row in rows):
        raise typer.Exit(1)


def _rows(config: SystemConfig) -> list[dict[str, Any]]:
    """Health as the services report it, processes as the stack recorded them."""
    from modyn.config.system import SERVICES
    from modyn.local.control import stack_status
    from modyn.rpc.channel import is_serving

    written = {part.name: part for part in stack_status(config).parts} if is_embedded(config) else {}
    running = stack_status(config).pid is not None
    rows = [
        {
            "name": name,
            "healthy": running and part.healthy,
            "pid": part.pid if running else None,
            "restarts": part.restarts,
            "address": part.address,
        }
        for name, part in written.items()
        if name not in SERVICES
    ]
    for name in SERVICES:
        endpoint, known = config.endpoint(name), written.get(name)
        pid = known.pid if known is not None and running else None
        restarts = known.restarts if known is not None else 0
        rows.append(
            {"name": name, "healthy": is_serving(endpoint), "pid": pid, "restarts": restarts, "address": endpoint.address}
        )
    return rows
