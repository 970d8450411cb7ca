"""Follow a run: show a live view on a terminal, or print lines to other outputs, and handle Ctrl-C.

`RunView` collects the events of the run; `draw`, `line_of` and `progress_line` render them.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from modyn.cli.context import say
from modyn.cli.views.check_lines import check_line, evidence_text, verdict_text
from modyn.cli.views.event_texts import SHOWN_S, counts, doing, kind_of, learned_text, serving_text, tested_text
from modyn.cli.views.output import date, printable
from modyn.errors import ModynError
from modyn.supervisor.client import EventKind, RequestedEvaluation, RunEvent, RunState
from modyn.supervisor.evidence import evidence_from_json
from modyn.supervisor.journal.states import TERMINAL

if TYPE_CHECKING:
    from rich.console import RenderableType

    from modyn.client import Client

Answer = Literal["detach", "stop", "continue"]

_PROGRESS_EVERY_S = 5.0
_SECOND_CTRL_C_S = 3.0
_SHOWN_TRIGGERS = 8
_SHOWN_CHECKS = 5
EVENTS_SHOWN = 1000
"""Largest number of earlier events that are shown. A run of months has more events than a viewer needs."""

Events: TypeAlias = "queue.SimpleQueue[RunEvent | ModynError | None]"
"""Queue of a run's events: an event, the error that ended the stream, or None at the end of the stream."""


def follow(
    client: Client,
    run_id: str,
    *,
    may_stop: bool = True,
    evaluation: RequestedEvaluation | None = None,
    newest: int | None = None,
) -> bool:
    """Show the events of a run until the run is terminal. Returns True if the run is terminal, False if the user detaches by Ctrl-C.

    Args: may_stop: whether Ctrl-C asks a question and can stop the run; false: Ctrl-C only detaches. evaluation: show the events of this evaluation,
    from its submission to its end, instead of the events of the run. newest: number of earlier events to show; default: EVENTS_SHOWN.
    """
    now = client.show(run_id)
    events: Events = queue.SimpleQueue()

    def receive() -> None:
        try:
            for event in client.watch(
                run_id, *((evaluation.after_seq, evaluation.number) if evaluation else ()), newest=newest or EVENTS_SHOWN
            ):
                events.put(event)
            events.put(None)
        except ModynError as error:
            events.put(error)
        except Exception as error:  # noqa: BLE001  (without the error, the view would wait for ever)
            what = f"an event of run {run_id} cannot be read: {type(error).__name__}: {error}; the run continues. "
            advice = "If the services have another version than this program, install the same version; then "
            events.put(ModynError(f"{what}{advice}`modyn watch {run_id}` follows the run again"))

    threading.Thread(target=receive, daemon=True, name="watch").start()
    view = RunView(run_id, str(now.state), now.num_samples, now.total_samples or 0)
    show = _follow_live if sys.stderr.isatty() and sys.stdout.isatty() else _follow_plain
    while True:
        try:
            show(view, events)
            return True
        except KeyboardInterrupt:
            answer = ask() if may_stop else "detach"
        if answer == "detach":
            return False
        if answer == "stop":
            say("stopping the run; it can be resumed")
            client.stop(run_id)


def ask() -> Answer:
    """Ask what Ctrl-C should do. A second Ctrl-C during the question stops the run."""
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

        def take(event: RunEvent) -> None:
            if view.apply(event) and event.kind is EventKind.MESSAGE:
                live.console.print(printable(str(event.detail["message"])), markup=False, highlight=False)  # above the view

        while not _drain(events, take, wait_s=0.1):
            live.update(draw(view, started))
        live.update(draw(view, started))


def _drain(events: Events, take: Callable[[RunEvent], object], wait_s: float) -> bool:
    """Pass the events that have arrived to `take`. Wait at most `wait_s` for the first event. Returns whether the stream has ended. Raises the error
    that ended the stream.
    """
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


@dataclass
class TriggerView:
    """The state of one trigger, derived from its events."""

    fired_at: int | None = None
    num_keys: int | None = None
    loss: float | None = None
    seconds: float | None = None
    stage: str = "fired"
    kind: str = "training"


@dataclass
class RunView:
    """The state of a run, derived from its events. `apply` receives the events in order. After a reconnect, journalled events may arrive again."""

    run_id: str
    state: str = RunState.SUBMITTED.value
    num_samples: int = 0
    total_samples: int = 0
    stream_time: int | None = None
    triggers: dict[int, TriggerView] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    training_trigger: int | None = None
    checks: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_SHOWN_CHECKS))
    """Details of the newest checks."""
    evaluations_done: int = 0
    evaluations_running: set[tuple[int | None, str, str]] = field(default_factory=set)
    evaluation: dict[str, Any] = field(default_factory=dict)
    tested: str = ""
    """Results of the tests of the newest steps."""
    last_seq: int = 0
    served: tuple[str, float] = ("", 0.0)
    """Text about prediction servers, and the time at which the text expires, by `clock`."""
    clock: Callable[[], float] = time.monotonic

    @property
    def serving(self) -> str:
        """Return a text about the present work of prediction servers; empty: there are no servers."""
        return self.served[0] if self.clock() < self.served[1] else ""

    def apply(self, event: RunEvent) -> bool:
        """Update the view with an event. Return False if the event was applied before."""
        if event.seq and event.seq <= self.last_seq:
            return False
        self.last_seq = event.seq or self.last_seq
        detail = event.detail
        match event.kind:
            case EventKind.RUN_STATE:
                self.state = str(detail["state"])
                if self.state in (RunState.SUBMITTED, *TERMINAL):
                    # The run does no work now, so its running trainings and evaluations have ended too.
                    self.training, self.training_trigger, self.evaluation = {}, None, {}
                    self.evaluations_running.clear()
            case EventKind.TRIGGER_FIRED:
                trigger = self._trigger(event)
                trigger.fired_at, trigger.kind = detail.get("fired_at_timestamp"), kind_of(detail)
                self.num_samples = max(self.num_samples, int(detail.get("position", 0)))
            case EventKind.CHECK:
                self.checks.append(detail)
                self.num_samples = max(self.num_samples, int(detail["position"]))
            case EventKind.STEP:
                self._step(event)
            case EventKind.STREAM_PROGRESS:
                self.num_samples, self.stream_time = int(detail["num_samples"]), detail.get("timestamp")
                self.total_samples = int(detail.get("total_samples") or 0)
            case EventKind.TRAINING_PROGRESS:
                self.training, self.training_trigger = detail, event.trigger_id
            case EventKind.EVALUATION_PROGRESS:
                self.evaluation = detail
            case EventKind.SERVING:
                self.served = serving_text(detail), self.clock() + SHOWN_S
        return True

    def _step(self, event: RunEvent) -> None:
        detail, trigger = event.detail, self._trigger(event)
        step, state = str(detail["step"]), str(detail["state"])
        if step == "evaluate":
            which = (event.trigger_id, str(detail.get("handler", "")), str(detail.get("dataset", "")))
            if state == "started":
                self.evaluations_running.add(which)
            else:
                self.evaluations_running.discard(which)
                self.evaluations_done += 1
            return
        trigger.stage = {"select": "selecting", "train": "training"}.get(step, step) if state == "started" else f"{step} {state}"
        trigger.num_keys = detail.get("num_keys", trigger.num_keys)
        if step == "train" and state == "finished":
            without_model = "tested" if detail.get("tests_only") else "untrained"
            trigger.stage = without_model if detail.get("model_id") is None else "trained"
            self.tested = tested_text(detail) or self.tested
            trigger.loss, trigger.seconds = detail.get("loss"), detail.get("seconds")
            self.training, self.training_trigger = {}, None

    def _trigger(self, event: RunEvent) -> TriggerView:
        return self.triggers.setdefault(event.trigger_id if event.trigger_id is not None else -1, TriggerView())


def line_of(event: RunEvent) -> str | None:
    """Format a journalled event as one line. None: the event adds nothing to earlier lines."""
    detail = event.detail
    match event.kind:
        case EventKind.RUN_STATE if detail["state"] in ("streaming", "selecting", "training"):
            return None  # Events of triggers and steps have more detail.
        case EventKind.RUN_STATE:
            error, message = detail.get("error"), detail.get("message")
            return f"run {detail['state']}" + (f": {error or message}" if error or message else "")
        case EventKind.MESSAGE:
            return str(detail["message"])
        case EventKind.CHECK:
            return check_line(detail)
        case EventKind.TRIGGER_FIRED:
            samples = detail.get("num_samples")
            steps = " for steps" if detail.get("online") else ""
            return f"trigger {event.trigger_id} fired{steps} at {date(detail.get('fired_at_timestamp'))}" + (
                f" after {samples} samples" if samples else ""
            )
        case EventKind.STEP if detail["state"] == "started" and "downsampling_turn" in detail:
            score = detail["downsampling_score"]
            why = "no score: same policy as for the trigger before" if score is None else f"score {score:.4g}"
            return f"trigger {event.trigger_id} uses policy {detail['downsampling_turn']} of downsampling_list ({why})"
        case EventKind.STEP if detail["state"] == "finished" and detail["step"] == "train" and detail.get("model_id") is None:
            if detail.get("tests_only"):
                return f"trigger {event.trigger_id} only tested its samples, steps are paused: {tested_text(detail) or 'no sample is left'}"
            return None  # A message with the reason follows.
        case EventKind.STEP if detail["state"] == "finished" and detail["step"] == "train":
            loss = detail.get("loss")
            shown = f", loss {loss:.4f}" if isinstance(loss, int | float) else ""
            skipped = f", {num:,} samples skipped" if (num := detail.get("num_skipped")) else ""
            trained = f"trigger {event.trigger_id} trained in {detail.get('seconds', 0):.1f} s{shown}{skipped}"
            trained += "".join(f", {text}" for text in (learned_text(detail), tested_text(detail)) if text)
            return f"{trained}: model {detail.get('model_id')}"
        case EventKind.STEP if detail["state"] == "failed":
            return f"trigger {event.trigger_id} {detail['step']} failed: {detail.get('error', '')}"
        case EventKind.STEP if detail["state"] == "finished" and detail["step"] == "evaluate":
            return f"trigger {event.trigger_id} evaluated on {detail.get('dataset')} ({detail.get('handler')}) in {detail.get('seconds', 0):.1f} s"
    return None


def progress_line(view: RunView) -> str:
    """Describe the present work of the run in one line, for output that is not a terminal."""
    parts = [f"{view.state}: {view.num_samples:,}" + (f" of {view.total_samples:,}" if view.total_samples else "") + " samples"]
    if view.training:
        parts.append(f"training trigger {view.training_trigger}: {', '.join(doing(view.training, with_samples=True))}")
    if view.evaluations_running:
        parts.append(f"{len(view.evaluations_running)} evaluations running")
    if view.tested:
        parts.append(view.tested)
    if view.serving:
        parts.append(f"serving: {view.serving}")
    return "; ".join(parts)


def draw(view: RunView, started: float) -> RenderableType:
    """Render the live view: state, stream, training, evaluation, checks, and the newest triggers.

    Args: started: time at which the view was opened, on the monotonic clock.
    """
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    head = Text.assemble((view.run_id, "bold"), "  ", (view.state, "green" if view.state == "finished" else "cyan"))
    head.append(f"  {time.monotonic() - started:.0f} s", "dim")
    bars = Table.grid(padding=(0, 1))
    total = view.total_samples or None
    bars.add_row(
        "stream",
        ProgressBar(total=total, completed=view.num_samples, width=30),
        f"{view.num_samples:,}" + (f" / {total:,}" if total else "") + " samples",
        date(view.stream_time) if view.stream_time is not None else "",
    )
    if view.training:
        done, of = (view.training.get(name) for name in counts(view.training))
        bars.add_row(
            f"training {view.training_trigger}",
            ProgressBar(total=of or None, completed=done or 0, width=30),
            *doing(view.training),
        )
    if view.evaluations_running or view.evaluations_done:
        seen, of = view.evaluation.get("samples_seen", 0), view.evaluation.get("samples_total") or None
        done = not view.evaluations_running
        bars.add_row(
            "evaluation",
            ProgressBar(total=1 if done else of, completed=1 if done else seen, width=30),
            f"{view.evaluations_done} done, {len(view.evaluations_running)} running",
        )
    if view.tested:
        bars.add_row("steps", "", view.tested)
    serving = [Text(f"serving: {view.serving}")] if view.serving else []
    of_steps = any(trigger.kind == "steps" for trigger in view.triggers.values())
    kind = ["kind"] if of_steps else []
    table = Table("trigger", *kind, "fired at", "keys", "stage", "loss", "seconds", box=None, padding=(0, 2), header_style="dim")
    known = sorted(number for number in view.triggers if number >= 0)
    if len(known) > _SHOWN_TRIGGERS:
        table.add_row(f"… {len(known) - _SHOWN_TRIGGERS} more", style="dim")
    for number in known[-_SHOWN_TRIGGERS:]:
        trigger = view.triggers[number]
        table.add_row(
            str(number),
            *([trigger.kind] if of_steps else []),
            date(trigger.fired_at),
            "–" if trigger.num_keys is None else f"{trigger.num_keys:,}",
            trigger.stage,
            "–" if trigger.loss is None else f"{trigger.loss:.4f}",
            "–" if trigger.seconds is None else f"{trigger.seconds:.1f}",
        )
    return Group(head, bars, *serving, *([_checks_table(view)] if view.checks else []), *([table] if known else []))


def _checks_table(view: RunView) -> RenderableType:
    from rich.table import Table

    table = Table("checked after", "time", "evidence", "verdict", box=None, padding=(0, 2), header_style="dim")
    for check in view.checks:
        evidence = evidence_from_json(check["evidence"])
        verdict = verdict_text(evidence, fires=check["fires"])
        after = f"{check['position']:,}{' (steps)' if check.get('online') else ''}"
        table.add_row(after, date(check.get("timestamp")), printable(evidence_text(evidence)), verdict)
    return table
