"""Steps take at most their share of the time, and what was put off is made up for."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.config.base import Section, load_section
from modyn.records import ServingLoad
from modyn.supervisor.triggers import TriggerContext, build_trigger
from modyn.supervisor.triggers.amount import DataAmountConfig, DataAmountTrigger
from modyn.supervisor.triggers.base import Check, CheckContext, CheckRecord, TriggerOutcome
from modyn.supervisor.triggers.share_bound import SINCE, ShareBound
from modyn.testing.checks import check_trigger, decide, example_streams
from modyn.testing.fake_evidence import FakeEvidence
from tests.supervisor.triggers.test_cost import at
from tests.support.triggers import fired


class _Amount(ShareBound):
    """After each fixed number of samples, if steps have taken little of the time."""

    Config: ClassVar[type[Section]] = DataAmountConfig

    def __init__(self, config: Section, context: TriggerContext | None = None) -> None:
        super().__init__(DataAmountTrigger(config, context), 0.00003)  # type: ignore[arg-type]


@pytest.mark.parametrize("load", [None, ServingLoad(50.0, 0.02, 0.009, 2, 1e9)], ids=["experiment", "served"])
def test_same_decisions_for_any_batching_and_after_any_restart(load: ServingLoad | None) -> None:
    source = FakeEvidence(at())
    source.serving_load = load
    check_trigger(_Amount, {"num_samples": 3}, streams=example_streams(40), source=source)


@given(amount=st.integers(1, 40), share=st.floats(0.02, 0.9))
def test_trainings_take_at_most_their_share_of_a_steady_stream(amount: int, share: float) -> None:
    bound = ShareBound(build_trigger({"id": "DataAmountTrigger", "num_samples": amount}), share)
    positions = fired(decide(bound, [at(*range(2000))]))  # a training takes 1.5 s, and a sample comes each second
    gaps = np.diff(positions)
    assert (1.5 / gaps <= share + 1e-9).all()
    if len(gaps):
        assert gaps.max() <= 1.5 / share + amount + 1, "and as much of it as they may, to a check"


class Live:
    """A policy of steps in production that fires each 4 samples."""

    def __init__(self) -> None:
        policy = build_trigger({"id": "DataAmountTrigger", "num_samples": 4}, TriggerContext(online=True))
        self.bound, self.source, self.position = ShareBound(policy, 0.25), FakeEvidence(at()), 0

    def train(self, seconds: float, ended: float, *, online: bool = True) -> None:
        known = {"train": seconds, "total": seconds}
        self.bound.triggered(TriggerOutcome(0, self.position, 0, 0, online=online))
        self.bound.ended(TriggerOutcome(0, self.position, 0, 0, model_id=1, seconds=known, finished_at=ended, online=online))

    def check(self, now: float) -> CheckRecord:
        self.source.serving_load = ServingLoad(0.0, 0.0, 0.0, 0, now)
        self.bound.observe(at(*[7] * 4))
        self.position += 4
        check = self.bound.check(CheckContext(self.position, 4, self.source))
        record = CheckRecord(self.position, check.fires, check.evidence, memory=check.memory)
        self.bound.checked(record)
        return record


def test_what_was_put_off_is_made_up_for_once_the_wait_is_over() -> None:
    live = Live()
    live.train(100.0, ended=1000.0, online=False)
    assert live.check(1000.0).fires, "a retraining is not a batch of steps, of which nothing is known yet"
    live.train(2.0, ended=1010.0)  # so 6 s must pass
    early = live.check(1015.0)
    assert (early.fires, early.numbers[SINCE], early.numbers[f"{SINCE}.threshold"]) == (False, 5.0, 6.0)
    assert live.check(1016.5).fires
    live.train(1.0, ended=1020.0)
    assert not live.check(1022.0).fires
    live.train(50.0, ended=1100.0, online=False)
    assert [live.check(now).fires for now in (1102.0, 1104.0)] == [False, True], "as long as after steps"


class _Once(DataAmountTrigger):
    """Fires once, at the first check."""

    asked = 0

    def check(self, context: CheckContext) -> Check:
        self.asked += 1
        return Check(self.asked == 1)


def test_a_policy_that_fires_once_is_not_forgotten() -> None:
    policy = _Once(load_section(DataAmountConfig, {"num_samples": 1}), TriggerContext(online=True))
    bound, source, verdicts = ShareBound(policy, 0.5), FakeEvidence(at()), list[bool]()
    known = TriggerOutcome(0, 0, 0, 0, model_id=1, seconds={"train": 3.0}, finished_at=100.0, online=True)
    bound.triggered(known)
    bound.ended(known)
    for position, now in enumerate((101.0, 102.0, 103.5, 110.0), 1):
        source.serving_load = ServingLoad(0.0, 0.0, 0.0, 0, now)
        check = bound.check(CheckContext(position, position, source))
        bound.checked(CheckRecord(position, check.fires, check.evidence, memory=check.memory))
        if check.fires:
            bound.triggered(known)
        verdicts.append(check.fires)
    assert verdicts == [False, False, True, False]


def test_what_was_put_off_waits_on_while_predictions_are_too_slow() -> None:
    section = {"id": "DynamicScheduleTrigger", "evaluation_interval_data_points": 4, "latency_limit_ms": 20, "max_share": 1}
    bound, source = ShareBound(build_trigger(section, TriggerContext(online=True)), 0.5), FakeEvidence(at())
    known = TriggerOutcome(0, 0, 0, 0, model_id=1, seconds={"train": 4.0}, finished_at=100.0, online=True)
    bound.triggered(known)
    bound.ended(known)
    verdicts = []
    for now, p99_s in ((102.0, 0.01), (105.0, 0.1), (106.0, 0.1), (107.0, 0.01)):  # the first two seconds belong to predictions
        source.serving_load = ServingLoad(1.0, 0.01, p99_s, 1, now)
        batch = at(*[7] * 4)
        assert bound.next_check(batch, 0) == 4
        bound.observe(batch)
        check = bound.check(CheckContext(4, 4, source))
        bound.checked(CheckRecord(4, check.fires, check.evidence, memory=check.memory))
        verdicts.append(check.fires)
    assert verdicts == [False, False, False, True]
