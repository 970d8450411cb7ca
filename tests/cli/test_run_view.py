"""The view of a run depends only on its events, even if they are repeated or interrupted."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from modyn.cli.follow import RunView, draw, line_of, progress_line
from modyn.cli.views.event_texts import SHOWN_S
from modyn.cli.views.output import clock
from modyn.supervisor.client import CheckRecord, Evidence, RunEvent
from modyn.supervisor.journal.run_events import detail_from_json

DAY = 86_400


def event(seq: int, kind: str, trigger_id: int | None = None, **detail: Any) -> RunEvent:
    return RunEvent(seq, 1e9 + seq, trigger_id, detail_from_json(kind, detail))


def step(seq: int, trigger_id: int, name: str, state: str, **detail: Any) -> RunEvent:
    return event(seq, "step", trigger_id, step=name, state=state, **detail)


def trigger_events(first_seq: int, trigger_id: int) -> list[RunEvent]:
    """All journalled events of one trigger: six events."""
    e = first_seq
    return [
        event(e, "trigger_fired", trigger_id, position=100 * (trigger_id + 1), fired_at_timestamp=DAY, num_samples=100),
        step(e + 1, trigger_id, "select", "started"),
        step(e + 2, trigger_id, "select", "finished", num_keys=90),
        step(e + 3, trigger_id, "train", "started"),
        step(e + 4, trigger_id, "train", "finished", model_id=7, loss=0.25, seconds=1.5),
        step(e + 5, trigger_id, "evaluate", "started", handler="h", dataset="d"),
    ]


RUN = [
    event(1, "run_state", state="submitted"),
    event(2, "run_state", state="streaming"),
    *trigger_events(3, 0),
    *trigger_events(9, 1),
    step(15, 0, "evaluate", "finished", handler="h", dataset="d", seconds=0.5),
    step(16, 1, "evaluate", "failed", handler="h", dataset="d", error="broken"),
    event(17, "run_state", state="finished"),
]


def view_of(events: Sequence[RunEvent]) -> RunView:
    view = RunView("r-1")
    for one in events:
        view.apply(one)
    return view


def drawn(view: RunView) -> str:
    out = io.StringIO()
    Console(file=out, width=120, force_terminal=False).print(draw(view, started=0.0))
    return out.getvalue()


def test_a_run_is_gathered_from_its_events() -> None:
    view = view_of(RUN)
    assert view.state == "finished"
    assert (view.evaluations_done, view.evaluations_running) == (2, set())
    assert view.num_samples == 200
    trigger = view.triggers[1]
    assert (trigger.fired_at, trigger.num_keys, trigger.loss, trigger.seconds, trigger.stage) == (DAY, 90, 0.25, 1.5, "trained")


@given(st.lists(st.integers(0, len(RUN)), max_size=5))
def test_events_that_come_again_after_a_reconnect_change_nothing(restarts: list[int]) -> None:
    repeated: list[RunEvent] = []
    for position in restarts:
        repeated += RUN[:position]
    view = view_of([*repeated, *RUN])
    assert dataclasses.asdict(view) == dataclasses.asdict(view_of(RUN))


@given(st.integers(0, len(RUN)))
def test_a_run_can_be_drawn_at_any_moment(position: int) -> None:
    view = view_of(RUN[:position])
    assert "r-1" in drawn(view)
    assert progress_line(view)


def test_progress_is_shown_until_the_step_ends() -> None:
    view = view_of(RUN[:6])
    view.apply(event(0, "stream_progress", samples_seen=150, samples_total=300, timestamp=DAY))
    view.apply(event(0, "training_progress", 0, samples_seen=64, samples_total=128, batches_seen=2, loss=0.5, samples_per_s=1000))
    assert progress_line(view) == "streaming: 150 of 300 samples; training trigger 0: 64 samples, 1,000 samples/s, loss 0.5000"
    shown = drawn(view)
    assert "1,000 samples/s" in shown
    assert "loss 0.5000" in shown
    view.apply(RUN[6])
    assert view.training is None


def test_the_stage_of_a_training_is_shown_with_its_progress() -> None:
    view = view_of(RUN[:6])
    counts = {"samples_seen": 64, "samples_total": 128, "batches_seen": 2, "loss": 0.5, "samples_per_s": 1000}
    view.apply(event(0, "training_progress", 0, stage="irreducible-loss model 1 of 2", **counts))
    line = "training trigger 0: irreducible-loss model 1 of 2: 64 samples, 1,000 samples/s, loss 0.5000"
    assert progress_line(view).endswith(line)
    assert "irreducible-loss model 1 of 2: 1,000 samples/s" in drawn(view)
    scoring = {"samples_scored": 250, "samples_to_score": 1000}
    view.apply(event(0, "training_progress", 0, stage="irreducible losses 1 of 2", **counts, **scoring))
    assert progress_line(view).endswith("training trigger 0: irreducible losses 1 of 2: scoring 250 of 1,000 candidates")
    assert "irreducible losses 1 of 2: scoring 250 of 1,000 candidates" in drawn(view)
    view.apply(event(0, "training_progress", 0, stage="", **counts, **scoring))
    assert progress_line(view).endswith("training trigger 0: scoring 250 of 1,000 candidates")
    view.apply(event(0, "training_progress", 0, **counts))
    assert progress_line(view).endswith("training trigger 0: 64 samples, 1,000 samples/s, loss 0.5000")


@pytest.mark.parametrize(("score", "why"), [(0.71428, "score 0.7143"), (None, "no score: same policy as for the trigger before")])
def test_a_line_says_which_policy_serves_a_trigger_by_a_score(score: float | None, why: str) -> None:
    begun = step(1, 3, "train", "started", downsampling_turn=1, downsampling_score=score)
    assert line_of(begun) == f"trigger 3 uses policy 1 of downsampling_list ({why})"


def test_progress_without_numbers_is_shown_as_such() -> None:
    view = view_of(RUN[:6])
    view.apply(event(0, "training_progress", 0, samples_seen=0, samples_total=0, batches_seen=0, loss=None))
    assert progress_line(view).endswith("training trigger 0: 0 samples, starting, no loss yet")
    assert "starting" in drawn(view)


def test_a_training_that_waits_for_a_worker_is_shown_as_queued() -> None:
    view = view_of(RUN[:6])
    waiting = {"state": "queued", "samples_seen": 0, "samples_total": 0, "batches_seen": 0, "loss": None}
    view.apply(event(0, "training_progress", 0, **waiting))
    assert progress_line(view).endswith("training trigger 0: queued, all workers are busy")
    assert "queued" in drawn(view)
    assert "starting" not in drawn(view)


def test_no_work_continues_in_an_interrupted_run() -> None:
    view = view_of(RUN[:8])
    view.apply(event(0, "training_progress", 0, samples_seen=1, samples_total=2, batches_seen=1))
    assert view.evaluations_running
    view.apply(event(9, "run_state", state="interrupted", error="storage is gone"))
    assert not view.evaluations_running
    assert not view.training
    assert view.state == "interrupted"


def test_only_the_latest_triggers_are_listed() -> None:
    view = view_of([one for number in range(30) for one in trigger_events(1 + 6 * number, number)])
    shown = drawn(view)
    assert "… 22 more" in shown
    assert shown.count("trained") == 8


def test_lines_for_those_without_a_terminal() -> None:
    assert [line for line in map(line_of, RUN) if line] == [
        "run submitted",
        "trigger 0 fired at 1970-01-02 00:00:00 after 100 samples",
        "trigger 0 trained in 1.5 s, loss 0.2500: model 7",
        "trigger 1 fired at 1970-01-02 00:00:00 after 100 samples",
        "trigger 1 trained in 1.5 s, loss 0.2500: model 7",
        "trigger 0 evaluated on d (h) in 0.5 s",
        "trigger 1 evaluate failed: broken",
        "run finished",
    ]


@pytest.mark.parametrize(
    ("detail", "line"),
    [
        ({"state": "failed", "error": "no disk"}, "run failed: no disk"),
        ({"state": "finished", "message": "no trigger fired"}, "run finished: no trigger fired"),
        ({"state": "stopped"}, "run stopped"),
    ],
)
def test_the_end_of_a_run_says_why(detail: dict[str, Any], line: str) -> None:
    assert line_of(event(1, "run_state", **detail)) == line


def test_messages_are_lines() -> None:
    assert line_of(event(3, "message", message="waiting for storage")) == "waiting for storage"


def test_a_line_says_how_many_samples_a_training_skipped() -> None:
    trained = step(1, 3, "train", "finished", model_id=7, loss=0.25, seconds=1.5, num_skipped=1200)
    assert line_of(trained) == "trigger 3 trained in 1.5 s, loss 0.2500, 1,200 samples skipped: model 7"


def check(seq: int, position: int, *evidence: Evidence, fires: bool = True, online: bool = False) -> RunEvent:
    record = CheckRecord(position, fires, evidence, seconds=0.5, timestamp=DAY, online=online)
    return RunEvent(seq, 1e9 + seq, None, record)


def test_each_check_is_a_line_and_the_newest_ones_are_drawn() -> None:
    events = [check(seq, 10 * seq, Evidence("mmd", 0.25, threshold=0.2), Evidence.flag("unusual")) for seq in range(1, 8)]
    assert line_of(events[0]) == "check after 10 samples (1970-01-02 00:00:00): mmd 0.2500 > 0.2000; fires, 0.50 s"
    view = view_of(events)
    assert view.num_samples == 70
    text = drawn(view)
    assert text.count("mmd 0.2500 > 0.2000") == 5
    assert "1970-01-02 00:00:00" in text
    assert "checked after" in text


def test_checks_of_the_policy_of_steps_are_marked() -> None:
    of_steps = check(2, 20, Evidence("mmd", 0.25), fires=False, online=True)
    text = drawn(view_of([check(1, 10, Evidence("mmd", 0.25), fires=False), of_steps]))
    assert "20 (steps)" in text
    assert "10 (steps)" not in text


def test_checks_of_many_metrics_fit_a_line() -> None:
    many = [Evidence(f"metric-{number}", 0.25, subtrigger="drift") for number in range(6)]
    line = line_of(check(1, 10, *many, fires=False))
    assert line is not None
    assert "3 more" in line
    assert len(line) < 160


STEPS = [
    *RUN[:-1],
    event(17, "trigger_fired", 2, position=300, fired_at_timestamp=DAY, num_samples=100, online=True),
    step(18, 2, "train", "finished", model_id=8, loss=0.25, seconds=0.1, tested=100, prequential_error=0.21, rollbacks=1),
    event(19, "trigger_fired", 3, position=400, fired_at_timestamp=DAY, num_samples=100, online=True),
    step(20, 3, "train", "finished", model_id=None, reason="r", tests_only=True, seconds=0.1, tested=100, prequential_error=0.2),
]


def test_steps_are_shown_as_such() -> None:
    view = view_of(STEPS)
    assert [(trigger.kind, trigger.stage) for trigger in view.triggers.values()][1:] == [
        ("training", "trained"),
        ("steps", "trained"),
        ("steps", "tested"),
    ]
    assert progress_line(view).endswith("; prequential error 0.2000 over 100 samples")
    shown = drawn(view)
    assert "prequential error 0.2000 over 100 samples" in shown
    assert [line.split()[:2] for line in shown.splitlines()[-4:]] == [
        ["0", "training"], ["1", "training"], ["2", "steps"], ["3", "steps"]
    ]  # fmt: skip
    assert "kind" not in drawn(view_of(RUN))
    lines = [line_of(one) for one in STEPS[-4:]]
    assert lines[0] == "trigger 2 fired for steps at 1970-01-02 00:00:00 after 100 samples"
    assert lines[1] is not None
    assert lines[1].endswith("prequential error 0.2100 over 100 samples, rolled back once: model 8")
    assert lines[3] == "trigger 3 only tested its samples, steps are paused: prequential error 0.2000 over 100 samples"


def test_what_is_served_is_shown_until_no_server_reports() -> None:
    now = [100.0]
    view = view_of(RUN[:-1])
    view.clock = lambda: now[0]
    versions = [{"role": "serving", "model_id": 17, "since": 1e9}, {"role": "shadow", "model_id": 18, "since": 1e9}]
    view.apply(event(0, "serving", num_servers=1, versions=versions, rate=1240.0, p99_s=0.0042))
    line = f"serving: version 17 since {clock(1e9)}; shadow 18; 1,240 requests/s, p99 4.2 ms"
    assert progress_line(view).endswith(f"; {line}")
    assert line in drawn(view)
    now[0] += SHOWN_S
    assert "serving" not in progress_line(view) + drawn(view)
    assert line_of(event(0, "serving", num_servers=0)) is None
