"""Follow a run: a live view on a terminal, lines elsewhere, and what Ctrl-C does."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias

from modyn.cli.context import say
from modyn.cli.live import RunView, draw, line_of, progress_line
from modyn.errors import ModynError

if TYPE_CHECKING:
    from modyn.client import Client
    from modyn.supervisor.client import RunEvent

Answer = Literal["detach", "stop", "continue"]

_PROGRESS_EVERY_S = 5.0
_SECOND_CTRL_C_S = 3.0


Events: TypeAlias = "queue.SimpleQueue[RunEvent | ModynError | None]"
"""What the stream of a run's events gives: an event, the error that ended the stream, or None at its end."""


def follow(client: Client, run_id: str) -> bool:
    """Follow a run. Returns True once the run has ended, False if the user detaches."""
    events: Events = queue.SimpleQueue()

    def receive() -> None:
        try:
            for event in client.watch(run_id):
                events.put(event)
            events.put(None)
        except ModynError as error:
            events.put(error)
        except Exception as error:  # noqa: BLE001  (a lost error would leave the view waiting for ever)
            what = f"an event of run {run_id} cannot be read: {type(error).__name__}: {error}; the run continues. "
            advice = "If the services have another version than this program, install the same one; then "
            events.put(ModynError(f"{what}{advice}`modyn watch {run_id}` follows the run again"))

    threading.Thread(target=receive, daemon=True, name="watch").start()
    view = RunView(run_id)
    show = _follow_live if sys.stderr.isatty() and sys.stdout.isatty() else _follow_plain
    while True:
        try:
            show(view, events)
            return True
        except KeyboardInterrupt:
            answer = ask()
        if answer == "detach":
            return False
        if answer == "stop":
            say("stopping the run; it can be resumed")
            client.stop(run_id)


def ask() -> Answer:
    """Ask what Ctrl-C is to do. Another one during the question stops the run."""
    try:
        if not sys.stdin.isatty():
            say(f"Ctrl-C: detaching; again within {_SECOND_CTRL_C_S:.0f} s stops the run")
            time.sleep(_SECOND_CTRL_C_S)
            return "detach"
        sys.stderr.write("\nDetach and let the run continue? [Y/n]  (Ctrl-C again stops the run) ")
        sys.stderr.flush()
        return "continue" if sys.stdin.readline().strip().lower().startswith("n") else "detach"
    except KeyboardInterrupt:
        return "stop"


def _follow_plain(view: RunView, events: Events) -> None:
    next_progress = time.monotonic() + _PROGRESS_EVERY_S

    def take(event: RunEvent) -> None:
        if view.apply(event) and (line := line_of(event)) is not None:
            say(f"{time.strftime('%H:%M:%S', time.localtime(event.time))}  {line}")

    while not _drain(events, take, wait_s=0.5):
        if time.monotonic() >= next_progress:
            say(f"{time.strftime('%H:%M:%S')}  {progress_line(view)}")
            next_progress = time.monotonic() + _PROGRESS_EVERY_S


def _follow_live(view: RunView, events: Events) -> None:
    from rich.console import Console
    from rich.live import Live

    started = time.monotonic()
    with Live(draw(view, started), console=Console(stderr=True), refresh_per_second=8, transient=False) as live:
        while not _drain(events, view.apply, wait_s=0.1):
            live.update(draw(view, started))
        live.update(draw(view, started))


def _drain(events: Events, take: Callable[[RunEvent], object], wait_s: float) -> bool:
    """Take the events that have arrived, waiting up to `wait_s` for the first. Returns whether the stream has ended; raises its error."""
    try:
        item = events.get(timeout=wait_s)
        while True:
            if item is None:
                return True
            if isinstance(item, ModynError):
                raise item
            take(item)
            item = events.get_nowait()
    except queue.Empty:
        return False
