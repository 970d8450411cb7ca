"""When there is time for steps: against a brute force over the stream, and by the load of servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from modyn.config.base import load_section
from modyn.records import SampleBatch, ServingLoad
from modyn.supervisor.triggers import TriggerContext, check_trigger_section
from modyn.supervisor.triggers.base import CheckContext, CheckRecord, TriggerOutcome
from modyn.supervisor.triggers.dynamic_schedule import DynamicScheduleConfig, DynamicScheduleTrigger
from modyn.testing.checks import check_trigger, decide, example_streams
from modyn.testing.fake_evidence import FakeEvidence
from tests.supervisor.triggers.test_cost import at
from tests.support.trigger_sections import streams_of_each
from tests.support.triggers import fired

CONFIGS: dict[str, dict[str, Any]] = {
    "every sample": {"evaluation_interval_data_points": 1},
    "a small share": {"evaluation_interval_data_points": 3, "max_share": 0.00002, "slack": 3.0},
    "time": {"evaluation_interval": "1d", "latency_limit_ms": 10},
    "warm-up": {
        "evaluation_interval_data_points": 2,
        "warmup_intervals": 3,
        "warmup_policy": {"id": "TimeTrigger", "every": "1d"},
    },
}
LIMITED: dict[str, Any] = {"evaluation_interval_data_points": 1, "latency_limit_ms": 20, "max_share": 0.5}


def policy(*, online: bool = True, **options: Any) -> DynamicScheduleTrigger:
    return DynamicScheduleTrigger(load_section(DynamicScheduleConfig, options), TriggerContext(online=online))


class _Trained(DynamicScheduleTrigger):
    """A policy whose trainings take so long, of which the model's passes take a share."""

    total_s, forward_s = 0.0, 0.0

    def ended(self, outcome: TriggerOutcome) -> None:
        super().ended(replace(outcome, seconds={"train": 0.0, "total": self.total_s}, forward_s=self.forward_s, num_trained=10))


@pytest.mark.parametrize(("name", "titles"), streams_of_each(CONFIGS, 40, all_timed=True))
@pytest.mark.parametrize("load", [None, ServingLoad(50.0, 0.02, 0.009, 2, 1e9)], ids=["experiment", "served"])
def test_same_decisions_for_any_batching_and_after_any_restart(name: str, titles: list[str], load: ServingLoad | None) -> None:
    source, streams = FakeEvidence(at()), example_streams(40)
    source.serving_load = load
    check_trigger(DynamicScheduleTrigger, CONFIGS[name], streams={title: streams[title] for title in titles}, source=source)


def _brute_force(times: Sequence[int], every: int, total_s: float, pass_s: float, slack: float, share: float) -> list[int]:
    """The rule over the whole stream, each sample a prediction."""
    found = list[int]()
    for position in range(every, len(times) + 1, every):
        if found:
            pending, passed = position - found[-1], max(times[:position]) - max(times[: found[-1]])
            rate = pending / max(1, passed)
            since, wait = passed - total_s, max(slack * total_s * rate * pass_s, total_s * (1 / share - 1))
            assume(since == wait or abs(since - wait) > 1e-6)  # less is rounding
            if since < wait:
                continue
        found.append(position)
    return found


@given(
    times=st.lists(st.integers(-20, 200), max_size=60),
    edges=st.lists(st.integers(0, 60), max_size=5),
    every=st.integers(1, 5),
    total_s=st.floats(0, 20),
    forward_s=st.floats(0, 20),
    slack=st.floats(0, 4),
    share=st.floats(0.1, 1),
)
def test_in_an_experiment_it_decides_as_if_the_stream_came_in_its_own_time(
    times: list[int], edges: list[int], every: int, total_s: float, forward_s: float, slack: float, share: float
) -> None:
    options = {"evaluation_interval_data_points": every, "slack": slack, "max_share": share}
    asked = _Trained(load_section(DynamicScheduleConfig, options))
    asked.total_s, asked.forward_s = total_s, forward_s
    whole, bounds = at(*times), [0, *sorted(min(edge, len(times)) for edge in edges), len(times)]
    found = decide(asked, [whole.slice(start, stop) for start, stop in pairwise(bounds)])
    assert fired(found) == _brute_force(times, every, total_s, forward_s / 10, slack, share)


@given(total_s=st.floats(0.5, 30), share=st.floats(0.05, 0.9))
def test_trainings_take_at_most_their_share_of_a_steady_stream(total_s: float, share: float) -> None:
    asked = _Trained(load_section(DynamicScheduleConfig, {"evaluation_interval_data_points": 1, "max_share": share}))
    asked.total_s = total_s
    found = fired(decide(asked, [at(*range(700))], asks_twice=False))
    gaps = np.diff(found)
    assert (total_s / gaps <= share + 1e-9).all()
    if len(gaps):
        assert gaps.max() <= total_s / share + 1, "and as much of it as they may, to a sample"


class Served:
    """A policy in production, whose batches of steps take 2 s."""

    def __init__(self, **options: Any) -> None:
        self.policy, self.source, self.position, self.checks = policy(**options), FakeEvidence(at()), 0, list[CheckRecord]()
        self.num_triggers, self.last = 0, 0
        self.train(online=False, seconds=500.0, ended=1000.0)

    def train(self, *, online: bool, seconds: float, ended: float, model: bool = True) -> None:
        outcome = TriggerOutcome(self.num_triggers, self.position, 0, 0, online=online)
        self.policy.triggered(outcome)
        known, model_id = {"train": seconds - 0.1, "total": seconds}, self.num_triggers if model else None
        self.policy.ended(replace(outcome, model_id=model_id, seconds=known, finished_at=ended))
        self.num_triggers, self.last = self.num_triggers + 1, self.position

    def check(self, now: float, rate: float = 0.0, mean_s: float = 0.0, p99_s: float = 0.0, servers: int = 1) -> bool:
        self.source.serving_load = ServingLoad(rate, mean_s, p99_s, servers, now)
        batch = SampleBatch(np.array([self.position]), np.array([7]), np.array([0]))
        assert self.policy.next_check(batch, 0) == 1
        self.policy.observe(batch)
        self.position += 1
        check = self.policy.check(CheckContext(self.position, self.position - self.last, self.source))
        self.checks.append(CheckRecord(self.position, check.fires, check.evidence, memory=check.memory))
        self.policy.checked(self.checks[-1])
        return check.fires


def test_the_wait_is_what_predictions_need() -> None:
    served = Served(evaluation_interval_data_points=1, slack=1.5, max_share=1)
    assert served.check(1000.0, 100, 0.01), "a retraining is not a batch of steps, of which nothing is known yet"
    served.train(online=True, seconds=2.0, ended=1002.0)
    # T' = 1.5 * 2 s * 100 / s * 0.01 s = 3 s
    assert [served.check(now, 100, 0.01) for now in (1004.9, 1005.1)] == [False, True]
    assert served.checks[-1].numbers["since_s.threshold"] == pytest.approx(3.0)
    assert served.check(1002.1, 0, 0), "no prediction has come"
    served.train(online=False, seconds=500.0, ended=1600.0)
    assert [served.check(now, 100, 0.01) for now in (1602.9, 1603.1)] == [False, True], "as long as after steps"


def test_an_interval_without_a_model_takes_its_share_of_the_time_too() -> None:
    """It was left out, or its samples were only tested."""
    served = Served(evaluation_interval_data_points=1, max_share=0.1)
    served.train(online=True, seconds=10.0, ended=1010.0)
    assert [served.check(now) for now in (1099.0, 1101.0)] == [False, True]
    served.train(online=True, seconds=5.0, ended=1106.0, model=False)
    assert [served.check(now) for now in (1107.0, 1150.0, 1152.0)] == [False, False, True]


def test_steps_pause_while_predictions_are_slow_and_catch_up() -> None:
    served = Served(**LIMITED)
    served.train(online=True, seconds=2.0, ended=1002.0)
    assert not served.check(1003.0, 10, 0.001, 0.05)
    assert "paused" not in served.checks[-1].numbers, "it would wait anyway"
    assert served.policy.warning() is None
    assert not served.check(1010.0, 10, 0.001, 0.0201)
    assert served.checks[-1].numbers["paused"] == 1
    warning = served.policy.warning()
    assert warning is not None
    assert "steps of proactive training pause: the p99 latency of predictions is above latency_limit_ms (20 ms)" in warning
    other = policy(**LIMITED)
    other.load_state(served.policy.state())
    assert other.warning() == warning
    assert served.check(1011.0, 10, 0.001, 0.02)
    assert served.policy.warning() is None


def test_a_server_that_is_gone_keeps_nothing_waiting() -> None:
    served = Served(**LIMITED)
    assert not served.check(1010.0, 10, 0.001, 1.0)
    assert served.check(1020.0, servers=0)
    assert "p99_latency_s" not in served.checks[-1].numbers


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_share": 0}, "trigger.max_share: 0 is wrong"),
        ({"slack": -1}, "trigger.slack: -1 is wrong"),
        ({"latency_limit_ms": 0}, "trigger.latency_limit_ms: 0 is wrong"),
        ({"evaluation_interval_data_points": None}, "evaluation_interval_data_points and evaluation_interval"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, Any], said: str) -> None:
    section = {"id": "DynamicScheduleTrigger", "evaluation_interval_data_points": 1, **options}
    assert said in str(check_trigger_section(section)[0])
