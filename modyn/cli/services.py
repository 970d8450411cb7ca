"""`modyn up`, `down`, `status`, `logs`: the services on this machine."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modyn.cli.context import Json, client_of_this_machine, connect, is_embedded, say, start_services, system_config
from modyn.cli.output import print_json, print_table

if TYPE_CHECKING:
    from modyn.config.system import SystemConfig


def add_to(app: typer.Typer) -> None:
    for command in (up, down, status, logs):
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


def logs(
    name: Annotated[
        str | None, typer.Argument(metavar="[RUN|SERVICE]", help="A run, a service, or nothing for all services.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines are written, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines to begin with.")] = 50,
) -> None:
    """Print the log of a service, of all services, or all lines about one run."""
    from modyn.config.system import SERVICES
    from modyn.local.stack import log_file

    config = system_config()
    parts = ("stack", "postgres", "redis", *SERVICES)
    if name is None or name not in parts:
        chosen, about = [log_file(config, part) for part in SERVICES], name
        if about is not None:
            _require_run(about, parts)
            chosen += sorted(config.state_dir.glob(f"*/logs/*{about}*"))
    else:
        chosen, about = [log_file(config, name)], None
    _print_logs(chosen, about, lines, follow)


def _require_run(run_id: str, parts: tuple[str, ...]) -> None:
    from modyn.errors import NotFoundError
    from modyn.registry import nearest

    with connect() as client:
        try:
            client.show(run_id)
        except NotFoundError as error:
            raise NotFoundError(
                f"there is no service or run '{run_id}'{nearest(run_id, list(parts))} Services: {', '.join(parts)}"
            ) from error


def _print_logs(paths: list[Path], about: str | None, lines: int, follow: bool) -> None:
    """`about`: only lines that hold it, unless it stands in the file's name already."""
    positions: dict[Path, int] = {}

    def fresh(path: Path) -> list[str]:
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                file.seek(positions.get(path, 0))
                found = file.read()
                # A line that is still being written comes with the next look.
                complete = found.rfind("\n") + 1
                positions[path] = positions.get(path, 0) + len(found[:complete].encode("utf-8", errors="replace"))
        except FileNotFoundError:
            return []
        kept = found[:complete].splitlines()
        return [line for line in kept if about is None or about in path.name or about in line]

    prefix = len(paths) > 1
    for path in paths:
        for line in fresh(path)[-lines:] if lines else []:
            sys.stdout.write(f"{path.stem}: {line}\n" if prefix else f"{line}\n")
    while follow:
        sys.stdout.flush()
        time.sleep(0.3)
        for path in paths:
            for line in fresh(path):
                sys.stdout.write(f"{path.stem}: {line}\n" if prefix else f"{line}\n")


def _rows(config: SystemConfig) -> list[dict[str, Any]]:
    """Health as the services themselves tell it, processes as the stack wrote them down."""
    from modyn.config.system import SERVICES
    from modyn.local.stack import stack_status
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
