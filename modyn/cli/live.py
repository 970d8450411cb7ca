"""Live view of a run. `RunView` collects its events; `draw` and `progress_line` render it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from modyn.cli.output import date
from modyn.supervisor.client import EventKind, RunEvent, RunState
from modyn.supervisor.states import TERMINAL

if TYPE_CHECKING:
    from rich.console import RenderableType

_SHOWN_TRIGGERS = 8


@dataclass
class TriggerView:
    """The state of one trigger, from its events."""

    fired_at: int | None = None
    num_keys: int | None = None
    loss: float | None = None
    seconds: float | None = None
    stage: str = "fired"


@dataclass
class RunView:
    """The state of a run, from its events. `apply` takes them in order; journalled events may be repeated after a reconnect."""

    run_id: str
    state: str = RunState.SUBMITTED.value
    num_samples: int = 0
    total_samples: int = 0
    stream_time: int | None = None
    triggers: dict[int, TriggerView] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    training_trigger: int | None = None
    evaluations_done: int = 0
    evaluations_running: set[tuple[int | None, str, str]] = field(default_factory=set)
    evaluation: dict[str, Any] = field(default_factory=dict)
    last_seq: int = 0

    def apply(self, event: RunEvent) -> bool:
        """Update the view with an event. One that was applied before changes nothing; False is returned then."""
        if event.seq and event.seq <= self.last_seq:
            return False
        self.last_seq = event.seq or self.last_seq
        detail = event.detail
        match event.kind:
            case EventKind.RUN_STATE:
                self.state = str(detail["state"])
                if self.state in (RunState.SUBMITTED, *TERMINAL):
                    # Work that was under way when the run ended is no longer under way.
                    self.training, self.training_trigger, self.evaluation = {}, None, {}
                    self.evaluations_running.clear()
            case EventKind.TRIGGER_FIRED:
                self._trigger(event).fired_at = detail.get("fired_at_timestamp")
                self.num_samples = max(self.num_samples, int(detail.get("position", 0)))
            case EventKind.STEP:
                self._step(event)
            case EventKind.STREAM_PROGRESS:
                self.num_samples, self.stream_time = int(detail["num_samples"]), detail.get("timestamp")
                self.total_samples = int(detail.get("total_samples") or 0)
            case EventKind.TRAINING_PROGRESS:
                self.training, self.training_trigger = detail, event.trigger_id
            case EventKind.EVALUATION_PROGRESS:
                self.evaluation = detail
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
            trigger.stage, trigger.loss, trigger.seconds = "trained", detail.get("loss"), detail.get("seconds")
            self.training, self.training_trigger = {}, None

    def _trigger(self, event: RunEvent) -> TriggerView:
        return self.triggers.setdefault(event.trigger_id if event.trigger_id is not None else -1, TriggerView())


def line_of(event: RunEvent) -> str | None:
    """Format a journalled event as one line; None for events that add nothing to the lines before."""
    detail = event.detail
    match event.kind:
        case EventKind.RUN_STATE if detail["state"] in ("streaming", "selecting", "training"):
            return None  # events of triggers and steps say more
        case EventKind.RUN_STATE:
            error, message = detail.get("error"), detail.get("message")
            return f"run {detail['state']}" + (f": {error or message}" if error or message else "")
        case EventKind.MESSAGE:
            return str(detail["message"])
        case EventKind.TRIGGER_FIRED:
            samples = detail.get("num_samples")
            return f"trigger {event.trigger_id} fired at {date(detail.get('fired_at_timestamp'))}" + (
                f" after {samples} samples" if samples else ""
            )
        case EventKind.STEP if detail["state"] == "finished" and detail["step"] == "train":
            loss = detail.get("loss")
            shown = f", loss {loss:.4f}" if isinstance(loss, int | float) else ""
            return (
                f"trigger {event.trigger_id} trained in {detail.get('seconds', 0):.1f} s{shown}: model {detail.get('model_id')}"
            )
        case EventKind.STEP if detail["state"] == "failed":
            return f"trigger {event.trigger_id} {detail['step']} failed: {detail.get('error', '')}"
        case EventKind.STEP if detail["state"] == "finished" and detail["step"] == "evaluate":
            return f"trigger {event.trigger_id} evaluated on {detail.get('dataset')} ({detail.get('handler')}) in {detail.get('seconds', 0):.1f} s"
    return None


def progress_line(view: RunView) -> str:
    """Format what the run is doing now as one line, for output that is not a terminal."""
    parts = [f"{view.state}: {view.num_samples:,}" + (f" of {view.total_samples:,}" if view.total_samples else "") + " samples"]
    if view.training:
        seen = f"{view.training['samples_seen']:,} samples"
        parts.append(f"training trigger {view.training_trigger}: {seen}, {_speed(view.training)}, {_loss(view.training)}")
    if view.evaluations_running:
        parts.append(f"{len(view.evaluations_running)} evaluations running")
    return "; ".join(parts)


def draw(view: RunView, started: float) -> RenderableType:
    """Render the live view: stage, stream, training, evaluation, the latest triggers."""
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
        seen, of = view.training["samples_seen"], view.training["samples_total"] or None
        bars.add_row(
            f"training {view.training_trigger}",
            ProgressBar(total=of, completed=seen, width=30),
            _speed(view.training),
            _loss(view.training),
        )
    if view.evaluations_running or view.evaluations_done:
        seen, of = view.evaluation.get("samples_seen", 0), view.evaluation.get("samples_total") or None
        done = not view.evaluations_running
        bars.add_row(
            "evaluation",
            ProgressBar(total=1 if done else of, completed=1 if done else seen, width=30),
            f"{view.evaluations_done} done, {len(view.evaluations_running)} running",
        )
    table = Table("trigger", "fired at", "keys", "stage", "loss", "seconds", box=None, padding=(0, 2), header_style="dim")
    known = sorted(number for number in view.triggers if number >= 0)
    if len(known) > _SHOWN_TRIGGERS:
        table.add_row(f"… {len(known) - _SHOWN_TRIGGERS} more", style="dim")
    for number in known[-_SHOWN_TRIGGERS:]:
        trigger = view.triggers[number]
        table.add_row(
            str(number),
            date(trigger.fired_at),
            "–" if trigger.num_keys is None else f"{trigger.num_keys:,}",
            trigger.stage,
            "–" if trigger.loss is None else f"{trigger.loss:.4f}",
            "–" if trigger.seconds is None else f"{trigger.seconds:.1f}",
        )
    return Group(head, bars, *([table] if known else []))


def _speed(training: dict[str, Any]) -> str:
    speed = training.get("samples_per_s")
    return "starting" if speed is None else f"{speed:,.0f} samples/s"


def _loss(training: dict[str, Any]) -> str:
    loss = training.get("loss")
    return "no loss yet" if loss is None else f"loss {loss:.4f}"
