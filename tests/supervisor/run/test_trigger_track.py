"""When triggers of both tracks of a run are due, however the stream is cut into batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.pipeline import load_pipeline
from modyn.errors import CorruptStateError
from modyn.records import RunId, SampleBatch
from modyn.supervisor.evidence import Evidence
from modyn.supervisor.journal.cursor import Cursor
from modyn.supervisor.journal.journal import RunJournal
from modyn.supervisor.run.trigger_track import TriggerTrack, first_due, open_tracks
from modyn.supervisor.triggers import build_trigger
from modyn.supervisor.triggers.base import CheckRecord, TriggerOutcome
from modyn.supervisor.triggers.measures.questions import NO_EVIDENCE
from modyn.testing.stack import tiny_pipeline

AMOUNT, TIME = {"id": "DataAmountTrigger", "num_samples": 4}, {"id": "TimeTrigger", "every": "4s"}


class Unwritten:
    """A journal of policies without evidence, whose checks are not journalled."""

    run_id = RunId("run-0001")


def steps(trigger: dict[str, Any], checks: Sequence[CheckRecord] = (), **options: Any) -> TriggerTrack:
    pipeline = load_pipeline(tiny_pipeline("stream", online={"trigger": trigger, "step_samples": 2, **options}), "p.yaml")
    _, found = open_tracks(pipeline, cast("RunJournal", Unwritten()), Cursor(), checks, NO_EVIDENCE)
    assert found is not None
    return found


OUTCOME = TriggerOutcome(0, 4, 0, 3)


def batch(start: int, stop: int) -> SampleBatch:
    return SampleBatch(np.arange(start, stop), np.arange(start, stop), np.zeros(stop - start, np.int64))


@pytest.mark.parametrize(("one", "other"), [(AMOUNT, TIME), (TIME, AMOUNT), (AMOUNT, AMOUNT), (TIME, TIME)])
@given(cuts=st.sets(st.integers(1, 29), max_size=8))
def test_two_policies_decide_in_one_order(one: dict[str, Any], other: dict[str, Any], cuts: set[int]) -> None:
    def decisions(bounds: list[int]) -> list[tuple[int, bool]]:
        journal, found = cast("RunJournal", Unwritten()), []
        tracks = [
            TriggerTrack(build_trigger(section), journal, Cursor(), online=online)
            for section, online in ((one, False), (other, True))
        ]
        for start, stop in pairwise(bounds):
            samples, received = batch(start, stop), 0
            for track in tracks:
                track.begin(samples)
            while True:
                due = first_due(tracks)
                at = len(samples) if due.next_check is None else due.next_check
                for track in tracks:
                    track.observe(samples.slice(received, at))
                if due.next_check is None:
                    break
                received = at
                found.append((start + at, due is tracks[1]))
                due.check(has_model=True)
                due.advance()
        return found

    assert decisions([0, *sorted(cuts), 30]) == decisions([0, 30])
    assert {second for _, second in decisions([0, 30])} == {False, True}


def test_steps_are_over_what_came_since_the_last_trigger_of_either_kind() -> None:
    due = steps(AMOUNT)
    due.observe(batch(0, 4))
    assert not due.check(has_model=False)
    assert due.check(has_model=True)
    due.triggered(OUTCOME)
    due.observe(batch(4, 8))
    due.triggered(OUTCOME)  # A retraining at the same position.
    assert not due.check(has_model=True)
    due.observe(batch(8, 12))
    assert due.check(has_model=True)
    assert (due.cursor.num_pending, due.cursor.first_pending, due.cursor.last_pending) == (4, 8, 11)


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=30), st.integers(2, 12))
def test_bounded_steps_leave_the_rest_to_the_next_ones(received: list[tuple[int, bool]], max_samples: int) -> None:
    """Each sample is one of exactly one trigger, in the order of the stream, whenever steps are taken."""
    total = sum(number for number, _ in received)
    stream = SampleBatch(np.arange(total), np.random.default_rng(1).integers(0, 99, total), np.zeros(total, np.int64))
    bounded, position, taken = steps(AMOUNT, max_samples=max_samples), 0, 0

    def read(at: int, limit: int) -> SampleBatch:
        return stream.slice(at, at + min(limit, 3))

    for number, fires in received:
        bounded.observe(stream.slice(position, position + number))
        position += number
        while fires and bounded.cursor.num_pending:
            due, waiting = bounded.take(read), position - taken
            assert (due.number, due.stop) == (min(waiting, max_samples), taken + due.number)
            times = stream.timestamps[taken : due.stop]
            assert (due.first, due.last) == (times.min(), times.max())
            assert ("wait for steps" in bounded.warning) == (waiting > max_samples)
            other = steps(AMOUNT, max_samples=max_samples)
            other.cursor = dataclasses.replace(bounded.cursor, num_pending=0)  # As the run's own cursor says.
            other.load_state(bounded.state())
            bounded = other
            bounded.triggered(dataclasses.replace(OUTCOME, position=position, online=True))
            taken = due.stop
        assert bounded.cursor.num_pending == position - taken
    bounded.triggered(OUTCOME)
    assert not bounded.cursor.num_pending, "a retraining takes all that waits"


def test_a_track_continues_from_its_state() -> None:
    due, other = steps(AMOUNT), steps(AMOUNT)
    due.observe(batch(0, 4))
    due.check(has_model=True)
    due.observe(batch(4, 6))
    other.load_state(due.state())
    assert other.state() == due.state()
    assert other.cursor.last_check == 4
    with pytest.raises(CorruptStateError, match="section online is not readable"):
        other.load_state({"version": 2})


def test_verdicts_of_its_own_are_replayed_after_the_state_that_was_saved() -> None:
    """The policy would fire at neither position: both verdicts come from the journal."""
    section = {
        "id": "DataIncorporationLatencyCostTrigger",
        "evaluation_interval_data_points": 4,
        "incorporation_delay_per_training_second": 1e9,
    }
    measured = Evidence("regret", 1.0), Evidence("forecast_training_s", 1.0), Evidence.flag("unusual")
    checks = [CheckRecord(at, True, measured, online=online) for at in (4, 8) for online in (False, True)]
    due = steps(section, checks)
    due.triggered(OUTCOME)
    due.ended(dataclasses.replace(OUTCOME, model_id=1, seconds={"train": 9.0}))
    state = due.state()
    due.begin(batch(0, 4))
    due.observe(batch(0, 4))
    assert due.check(has_model=True)
    assert due.cursor.last_check == 4
    due.observe(batch(4, 9))
    with pytest.raises(CorruptStateError, match="checked after 8 samples, but not when it continues"):
        due.refuse_missed()
    due.load_state({**state, "last_check": 8})
    due.refuse_missed()
