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
from typing import TYPE_CHECKING, Literal, TypeAlias

from modyn.cli.context import say
from modyn.cli.views.check_lines import check_line, evidence_text, verdict_text
from modyn.cli.views.event_texts import SHOWN_S, doing, kind_of, learned_text, serving_text, tested_text
from modyn.cli.views.output import date, printable
from modyn.errors import CorruptStateError, ModynError
from modyn.supervisor.client import (
    CheckRecord,
    EvaluateStep,
    EvaluationProgress,
    RequestedEvaluation,
    RunEvent,
    RunMessage,
    RunState,
    SelectStep,
    ServingStatus,
    StateChange,
    StepState,
    StreamProgress,
    TrainStep,
    TriggerFired,
    TriggerProgress,
)
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
        except Exception as error:  # noqa: BLE001  (without the error, the view would wait for ever)
            if isinstance(error, ModynError) and not isinstance(error, CorruptStateError):
                events.put(error)
                return
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
            if view.apply(event) and isinstance(event.detail, RunMessage):
                live.console.print(printable(event.detail.message), markup=False, highlight=False)  # above the view

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
    training: TriggerProgress | None = None
    training_trigger: int | None = None
    checks: deque[CheckRecord] = field(default_factory=lambda: deque(maxlen=_SHOWN_CHECKS))
    """The newest checks."""
    evaluations_done: int = 0
    evaluations_running: set[tuple[int | None, str, str]] = field(default_factory=set)
    evaluation: EvaluationProgress | None = None
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
        match detail := event.detail:
            case StateChange():
                self._become(detail.state)
            case TriggerFired():
                trigger = self._trigger(event)
                trigger.fired_at, trigger.kind = detail.fired_at_timestamp, kind_of(online=detail.online)
                self.num_samples = max(self.num_samples, detail.position)
            case CheckRecord():
                self.checks.append(detail)
                self.num_samples = max(self.num_samples, detail.position)
            case SelectStep():
                trigger = self._trigger(event)
                trigger.stage = "selecting" if detail.state is StepState.STARTED else f"select {detail.state}"
                trigger.num_keys = trigger.num_keys if detail.num_keys is None else detail.num_keys
            case TrainStep():
                self._train(self._trigger(event), detail)
            case EvaluateStep():
                self._evaluate(event.trigger_id, detail)
            case StreamProgress():
                (self.num_samples, self.total_samples), self.stream_time = detail.done, detail.timestamp
            case TriggerProgress():
                self.training, self.training_trigger = detail, event.trigger_id
            case EvaluationProgress():
                self.evaluation = detail
            case ServingStatus():
                self.served = serving_text(detail), self.clock() + SHOWN_S
        return True

    def _become(self, state: RunState) -> None:
        self.state = state.value
        if state in (RunState.SUBMITTED, *TERMINAL):
            # The run does no work now, so its running trainings and evaluations have ended too.
            self.training, self.training_trigger, self.evaluation = None, None, None
            self.evaluations_running.clear()

    def _train(self, trigger: TriggerView, step: TrainStep) -> None:
        if step.state is StepState.STARTED:
            trigger.stage = "training"
            return
        trigger.stage = "trained" if step.model_id is not None else "tested" if step.tests_only else "untrained"
        trigger.loss, trigger.seconds = step.loss, step.seconds
        self.tested = tested_text(step) or self.tested
        self.training, self.training_trigger = None, None

    def _evaluate(self, trigger_id: int | None, step: EvaluateStep) -> None:
        which = (trigger_id, step.handler, step.dataset)
        if step.state is StepState.STARTED:
            self.evaluations_running.add(which)
        else:
            self.evaluations_running.discard(which)
            self.evaluations_done += 1

    def _trigger(self, event: RunEvent) -> TriggerView:
        return self.triggers.setdefault(event.trigger_id if event.trigger_id is not None else -1, TriggerView())


def line_of(event: RunEvent) -> str | None:
    """Format a journalled event as one line. None: the event adds nothing to earlier lines."""
    trigger = f"trigger {event.trigger_id}"
    match detail := event.detail:
        case StateChange(state=RunState.STREAMING | RunState.SELECTING | RunState.TRAINING):
            return None  # Events of triggers and steps have more detail.
        case StateChange():
            return ": ".join(filter(None, (f"run {detail.state}", detail.error or detail.message)))
        case RunMessage():
            return detail.message
        case CheckRecord():
            return check_line(detail)
        case TriggerFired():
            steps = " for steps" if detail.online else ""
            samples = f" after {detail.num_samples} samples" if detail.num_samples else ""
            return f"{trigger} fired{steps} at {date(detail.fired_at_timestamp)}{samples}"
        case TrainStep(state=StepState.STARTED, downsampling_turn=int(turn), downsampling_score=score):
            why = "no score: same policy as for the trigger before" if score is None else f"score {score:.4g}"
            return f"{trigger} uses policy {turn} of downsampling_list ({why})"
        case TrainStep(state=StepState.FINISHED, model_id=None, tests_only=True):
            return f"{trigger} only tested its samples, steps are paused: {tested_text(detail) or 'no sample is left'}"
        case TrainStep(state=StepState.FINISHED, model_id=int(model_id)):  # Without a model, a message with the reason follows.
            loss = "" if detail.loss is None else f"loss {detail.loss:.4f}"
            skipped = f"{detail.num_skipped:,} samples skipped" if detail.num_skipped else ""
            facts = ", ".join(filter(None, (loss, skipped, learned_text(detail), tested_text(detail))))
            return f"{trigger} trained in {detail.seconds or 0:.1f} s{', ' if facts else ''}{facts}: model {model_id}"
        case EvaluateStep(state=StepState.FAILED):
            return f"{trigger} {detail.step} failed: {detail.error}"
        case EvaluateStep(state=StepState.FINISHED):
            return f"{trigger} evaluated on {detail.dataset} ({detail.handler}) in {detail.seconds or 0:.1f} s"
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
        done, of = view.training.done
        bar = ProgressBar(total=of or None, completed=done, width=30)
        bars.add_row(f"training {view.training_trigger}", bar, *doing(view.training))
    if view.evaluations_running or view.evaluations_done:
        seen, of = view.evaluation.done if view.evaluation else (0, 0)
        if not view.evaluations_running:
            seen = of = 1
        bars.add_row(
            "evaluation",
            ProgressBar(total=of or None, completed=seen, width=30),
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
        verdict = verdict_text(check.evidence, fires=check.fires)
        after = f"{check.position:,}{' (steps)' if check.online else ''}"
        table.add_row(after, date(check.timestamp), printable(evidence_text(check.evidence)), verdict)
    return table
