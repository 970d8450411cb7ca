"""When steps of proactive training are due, however the stream is cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.base import Severity
from modyn.config.online import OnlineConfig
from modyn.config.pipeline import load_pipeline
from modyn.errors import CorruptStateError
from modyn.records import SampleBatch
from modyn.selector.history import check_history
from modyn.supervisor.cursor import Cursor
from modyn.supervisor.decisions import TriggerDecisions
from modyn.supervisor.journal import RunJournal
from modyn.supervisor.online_steps import OnlineSteps, check_online
from modyn.supervisor.triggers import build_trigger, check_trigger_section
from modyn.supervisor.triggers.base import CheckRecord, DueChecks, TriggerOutcome
from modyn.testing.stack import tiny_pipeline

AMOUNT, TIME = {"id": "DataAmountTrigger", "num_samples": 4}, {"id": "TimeTrigger", "every": "4s"}


class _Unread:
    """A journal of policies whose checks are not written."""

    def checked(self, record: CheckRecord) -> None:
        raise AssertionError(f"{record} is journalled")


def steps(trigger: dict[str, Any], checks: Iterable[CheckRecord] = (), **options: Any) -> OnlineSteps:
    pipeline = load_pipeline(tiny_pipeline("stream", online={"trigger": trigger, "step_samples": 2, **options}), "p.yaml")
    journal = cast("RunJournal", _Unread())
    found = OnlineSteps.of(pipeline, lambda policy: TriggerDecisions(policy, journal, "run-0001", checks, online=True))
    assert found is not None
    return found


OUTCOME = TriggerOutcome(0, 4, 0, 3)


def batch(start: int, stop: int) -> SampleBatch:
    return SampleBatch(np.arange(start, stop), np.arange(start, stop), np.zeros(stop - start, np.int64))


@pytest.mark.parametrize(("one", "other"), [(AMOUNT, TIME), (TIME, AMOUNT), (AMOUNT, AMOUNT), (TIME, TIME)])
@given(cuts=st.sets(st.integers(1, 29), max_size=8))
def test_two_policies_decide_in_one_order(one: dict[str, Any], other: dict[str, Any], cuts: set[int]) -> None:
    def decisions(bounds: list[int]) -> list[tuple[int, bool]]:
        policies, last, found = (build_trigger(one), build_trigger(other)), [0, 0], []
        for start, stop in pairwise(bounds):
            samples, received = batch(start, stop), 0
            first, second = (DueChecks(samples, policy, at - start) for policy, at in zip(policies, last, strict=True))
            while True:
                due = second if (is_second := second.before(first)) else first
                at = len(samples) if due.at is None else due.at
                for policy in policies:
                    policy.observe(samples.slice(received, at))
                if due.at is None:
                    break
                received = at
                found.append((start + at, is_second))
                policies[is_second].checked(CheckRecord(start + at, True))
                last[is_second] = start + at
                due.go_on()
        return found

    assert decisions([0, *sorted(cuts), 30]) == decisions([0, 30])
    assert {second for _, second in decisions([0, 30])} == {False, True}


def test_steps_are_over_what_came_since_the_last_trigger_of_either_kind() -> None:
    due = steps(AMOUNT)
    due.observe(batch(0, 4))
    assert not due.check(Cursor(position=4), has_model=False)
    assert due.check(Cursor(position=4), has_model=True)
    due.triggered(OUTCOME)
    due.observe(batch(4, 8))
    due.triggered(OUTCOME)  # A retraining at the same position.
    assert not due.check(Cursor(position=8), has_model=True)
    due.observe(batch(8, 12))
    assert due.check(Cursor(position=12), has_model=True)
    assert (due.pending.num_pending, due.pending.first_pending, due.pending.last_pending) == (4, 8, 11)


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=30), st.integers(2, 12))
def test_a_bounded_stretch_leaves_the_rest_to_the_next_one(received: list[tuple[int, bool]], max_samples: int) -> None:
    """Each sample is one of exactly one trigger, in the order of the stream, whenever steps are taken."""
    total = sum(number for number, _ in received)
    stream = SampleBatch(np.arange(total), np.random.default_rng(1).integers(0, 99, total), np.zeros(total, np.int64))
    bounded, position, taken = steps(AMOUNT, max_samples=max_samples), 0, 0

    def read(at: int, limit: int) -> SampleBatch:
        return stream.slice(at, at + min(limit, 3))

    for number, fires in received:
        bounded.observe(stream.slice(position, position + number))
        position += number
        while fires and bounded.pending.num_pending:
            due, waiting = bounded.due(Cursor(position=position, max_timestamp=0), read), position - taken
            assert (due.number, due.stop) == (min(waiting, max_samples), taken + due.number)
            times = stream.timestamps[taken : due.stop]
            assert (due.first, due.last) == (times.min(), times.max())
            assert ("wait for steps" in bounded.warning) == (waiting > max_samples)
            other = steps(AMOUNT, max_samples=max_samples)
            other.load_state(bounded.state())
            bounded = other
            bounded.triggered(dataclasses.replace(OUTCOME, position=position, online=True))
            taken = due.stop
        assert bounded.pending.num_pending == position - taken
    bounded.triggered(OUTCOME)
    assert not bounded.pending.num_pending, "a retraining takes all that waits"


def test_the_state_goes_on() -> None:
    due, other = steps(AMOUNT), steps(AMOUNT)
    due.observe(batch(0, 4))
    due.check(Cursor(position=4), has_model=True)
    due.observe(batch(4, 6))
    other.load_state(due.state())
    assert other.state() == due.state()
    assert other.last_check == 4
    with pytest.raises(CorruptStateError, match="section online is not readable"):
        other.load_state({"version": 2})


def test_verdicts_of_its_own_are_replayed_behind_the_state_that_was_saved() -> None:
    """The policy would fire at neither position: both verdicts come from the journal."""
    section = {
        "id": "DataIncorporationLatencyCostTrigger",
        "evaluation_interval_data_points": 4,
        "incorporation_delay_per_training_second": 1e9,
    }
    measured = {"regret": 1.0, "forecast_training_s": 1.0, "unusual": 1.0}
    checks = [CheckRecord(at, True, measured, online=online) for at in (4, 8) for online in (False, True)]
    due = steps(section, checks)
    due.triggered(OUTCOME)
    due.ended(dataclasses.replace(OUTCOME, model_id=1, seconds={"train": 9.0}))
    state = due.state()
    DueChecks(batch(0, 4), due.policy, -1)
    due.observe(batch(0, 4))
    assert due.check(Cursor(position=4), has_model=True)
    assert due.last_check == 4
    with pytest.raises(CorruptStateError, match="checked after 8 samples, but not when it continues"):
        due.refuse_missed(Cursor(position=9))
    due.load_state({**state, "last_check": 8})
    due.refuse_missed(Cursor(position=9))


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"trigger": AMOUNT}, "online.step_samples: is required"),
        ({"step_samples": 1}, "online.trigger: is required"),
        ({"trigger": {"id": "TimeTrigger"}, "step_samples": 1}, "online.trigger.every: is required"),
        ({"trigger": {"id": "DataAmountTriger"}, "step_samples": 1}, "did you mean 'DataAmountTrigger'"),
        ({"trigger": AMOUNT, "step_samples": 1, "histroy": {}}, "did you mean 'history'"),
        ({"trigger": AMOUNT, "step_samples": 1, "learning_rate": {"rule": "inverse"}}, "online.learning_rate.rule"),
        ({"trigger": AMOUNT, "step_samples": 4, "update_samples": 2}, "online.update_samples: stands beside steps that draw"),
        (
            {"trigger": AMOUNT, "step_samples": 4, "update_samples": 5, "history_samples": 1},
            "online.update_samples: an update is made before the step, which comes after step_samples: write at most 4",
        ),
        ({"trigger": AMOUNT, "step_samples": 4, "max_samples": 3}, "online.max_samples: is less than a step has: write at least"),
        ({"trigger": AMOUNT, "step_samples": 4, "max_share": 0}, "online.max_share: 0 is wrong"),
        ([], "online: "),
    ],
)
def test_what_is_wrong_is_said(section: Any, said: str) -> None:
    assert any(said in str(problem) for problem in check_online({"online": section}))


def test_a_pause_for_predictions_that_one_long_stretch_would_follow_is_warned_of() -> None:
    limited = {"id": "DynamicScheduleTrigger", "evaluation_interval_data_points": 10, "latency_limit_ms": 20}
    (found,) = check_online({"online": {"trigger": limited, "step_samples": 2}})
    assert (found.path, found.severity) == ("online.max_samples", Severity.WARNING)
    assert check_online({"online": {"trigger": limited, "step_samples": 2, "max_samples": 20}}) == []


def test_the_examples_of_the_documentation_are_right() -> None:
    page = (Path(__file__).parents[2] / "docs/online.md").read_text()
    blocks = [yaml.safe_load(block.partition("```")[0]) for block in page.split("```yaml\n")[1:]]
    section = blocks[0]
    assert check_online(section) == check_history(section) == check_trigger_section(section["trigger"]) == []
    assert [list(block["online"]) for block in blocks[-2:]] == [["convergence"], ["rollback"]]
    for block in blocks[-2:]:
        # As it says, with the defaults.
        found = OnlineConfig(trigger={}, step_samples=1, **block["online"])
        (name,) = block["online"]
        assert getattr(found, name) == type(getattr(found, name))()
