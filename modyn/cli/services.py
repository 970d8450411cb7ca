"""`modyn up`, `down`, `status`, `logs`: the services on this machine, and the logs of services and of the workers of runs."""

from __future__ import annotations

import json as json_module
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modyn.cli.context import Json, client_of_this_machine, connect, is_embedded, say, start_services, system_config
from modyn.cli.views.output import print_json, print_table, printable

if TYPE_CHECKING:
    from modyn.config.system import SystemConfig

Logs = dict[Path, tuple[str, re.Pattern[str] | None]]
"""Log files, each with the name of its service and a pattern. Only lines that match the pattern are shown; None: all lines."""
Find = Callable[[], Logs]


def up() -> None:
    """Start all services on this machine that are not running."""
    with client_of_this_machine() as client:
        started = time.perf_counter()
        status_now = start_services(client)
        say(f"{len(status_now.parts)} parts are healthy after {time.perf_counter() - started:.1f} s; `modyn down` stops them")


def down() -> None:
    """Stop the services. Runs are interrupted without loss. Production runs continue after `modyn up`, other runs after `modyn resume`."""
    with client_of_this_machine() as client:
        say("stopped" if client.down() else f"no services run in {client.config.state_dir}")


def status(json: Json = False) -> None:
    """Show the health, the process and the address of every service. Exit code 1 unless all services are healthy."""
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
    """Return a row for each service: the health that the service reports, and the process that the stack has recorded."""
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


def logs(
    name: Annotated[
        str | None, typer.Argument(metavar="[RUN|SERVICE]", help="A run or a service. Default: all services.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new lines until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of last lines of each log to start with.")] = 50,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each line, for programs.")] = False,
) -> None:
    """Print the log of a service, of all services, or of a run. The log of a run has all lines of its workers, and the lines of services about this
    run.

    The command reads files of this machine. If services run in containers, use `docker compose logs SERVICE`.
    """
    from modyn.config.system import SERVICES
    from modyn.errors import NotFoundError

    config = system_config()
    services = (*SERVICES, *config.replicas)
    parts = ("stack", "postgres", "redis", *services)
    run_id = name if name not in (None, *parts) else None
    if run_id is not None:
        _require_run(run_id, parts)
    about = _mention(run_id) if run_id is not None else None
    chosen = services if name in (None, run_id) else (name,)

    def find() -> Logs:
        logs: Logs = {config.log_file(part): (part, about) for part in chosen}
        return logs if run_id is None else {**logs, **_of_workers(config, run_id)}

    if not follow and not any(path.exists() for path in find()):
        elsewhere = "use `docker compose logs SERVICE` for services in containers"
        advice = "no service has run there yet" if is_embedded(config) else elsewhere
        raise NotFoundError(f"there are no such logs in {config.log_dir}; {advice}")
    _print_logs(find, lines, follow, json)


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


def _of_workers(config: SystemConfig, run_id: str) -> Logs:
    """Return the worker logs of a run, and the name of each worker, e.g. `training-3`."""
    return {path: (path.stem, None) for path in sorted((config.log_dir / "runs" / run_id).glob("*.log"), key=_in_order)}


def _in_order(path: Path) -> tuple[str, int]:
    kind, _, number = path.stem.rpartition("-")
    return kind, int(number) if number.isdecimal() else -1


def _mention(run_id: str) -> re.Pattern[str]:
    """Return a pattern that finds a run's name in a line, but not as a part of a longer name.

    >>> bool(_mention("digits-0001").search('{"run_id": "digits-0001"}')), bool(_mention("digits-0001").search("digits-00010"))
    (True, False)
    """
    return re.compile(rf"(?<![\w.-]){re.escape(run_id)}(?![\w-])")


def _print_logs(find: Find, lines: int, follow: bool, json: bool) -> None:
    """Print the logs that `find` returns. With `follow`, `find` is called repeatedly, because new trainings have new files."""
    from modyn.log_files import LogReader

    readers: dict[Path, LogReader] = {}
    named = len(find()) > 1
    last: int | None = lines
    while True:
        for path, (part, about) in find().items():
            lines_of = readers.setdefault(path, LogReader(path)).lines()
            found = [line for line in lines_of if about is None or about.search(line)]
            for line in found if last is None else found[max(0, len(found) - last) :]:
                text = _as_json(part, line) if json else printable(f"{part}: {readable(line)}" if named else readable(line))
                sys.stdout.write(text + "\n")
        if not follow:
            return
        sys.stdout.flush()
        time.sleep(0.3)  # Log files are polled, because nothing announces new lines. Ctrl-C ends the loop.
        last = None


def readable(line: str) -> str:
    """Format a line of JSON as time, level, event and values, followed by an exception, if there is one. Other lines stay as they are.

    >>> readable('{"timestamp": "2026-01-02T03:04:05.678Z", "level": "info", "event": "trained", "service": "s", "n": 1, "why": "a b"}')
    "2026-01-02 03:04:05  info     trained  n=1 why='a b'"
    """
    try:
        values = json_module.loads(line)
    except ValueError:
        return line
    if not isinstance(values, dict) or "event" not in values:
        return line
    time_of_day = str(values.pop("timestamp", "")).replace("T", " ").partition(".")[0]
    level, event, exception = (str(values.pop(name, "")) for name in ("level", "event", "exception"))
    values.pop("service", None)
    shown = " ".join(
        f"{key}={value if isinstance(value, str) and value and ' ' not in value else repr(value)}"
        for key, value in values.items()
    )
    head = "  ".join(filter(None, [time_of_day, level and f"{level:<7}", event, shown]))
    return f"{head}\n{exception.rstrip()}" if exception else head


def _as_json(part: str, line: str) -> str:
    """Return a line as JSON. Services write JSON; other lines (tracebacks, PostgreSQL) are wrapped."""
    try:
        if isinstance(json_module.loads(line), dict):
            return line
    except ValueError:
        pass
    return json_module.dumps({"part": part, "line": line}, ensure_ascii=False)
