"""`modyn up`, `down`, `status`: the services on this machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import typer

from modyn.cli.context import Json, client_of_this_machine, is_embedded, say, start_services, system_config
from modyn.cli.output import print_json, print_table

if TYPE_CHECKING:
    from modyn.config.system import SystemConfig


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

    stack = stack_status(config)
    written = {part.name: part for part in stack.parts} if is_embedded(config) else {}
    rows = []
    for name in (*(name for name in written if name not in SERVICES), *SERVICES):
        part, endpoint = written.get(name), config.endpoint(name) if name in SERVICES else None
        rows.append(
            {
                "name": name,
                "healthy": is_serving(endpoint) if endpoint else bool(part and part.healthy and stack.pid is not None),
                "pid": part.pid if part and stack.pid is not None else None,
                "restarts": part.restarts if part else 0,
                "address": endpoint.address if endpoint else part.address if part else "",
            }
        )
    return rows
