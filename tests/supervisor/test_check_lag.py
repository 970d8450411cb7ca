"""A production run whose checks take longer than its data takes to arrive says so, until it has caught up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from prometheus_client import REGISTRY

from modyn.config.system import SystemConfig
from modyn.errors import UnavailableError
from modyn.supervisor.check_lag import CheckLag
from modyn.supervisor.client import RunMode, RunOptions
from modyn.supervisor.cursor import Cursor
from modyn.supervisor.decisions import TriggerDecisions
from modyn.supervisor.journal import RunJournal
from modyn.supervisor.triggers import TriggerContext, build_trigger
from modyn.testing.services import InMemoryServices, pipeline_yaml
from modyn.testing.waiting import eventually
from tests.support.running_supervisor import serve_supervisor

LOOK_EVERY_S = 10.0


class Stream:
    """A dataset that grows, a run that decides on it, and the time that passes meanwhile."""

    def __init__(self, held: int = 0) -> None:
        self.held = held
        self.is_away = False
        self.now = 0.0
        self.check_seconds = 0.0
        self.cursor = Cursor()
        self.lag = CheckLag("run-0001", self.next_key, LOOK_EVERY_S, lambda: self.now)
        self.lag.look(self.cursor, 0.0)

    def next_key(self) -> int:
        if self.is_away:
            raise UnavailableError("storage is away")
        return self.held

    def go_on(
        self, arrived: int, decided: int, *, checking: float = 0.9, seconds: float = LOOK_EVERY_S, batch_ends: bool = False
    ) -> bool:
        """Args: checking: share of the seconds that checks take."""
        self.held += arrived
        self.now += seconds
        self.check_seconds += checking * seconds
        position = self.cursor.position + decided
        self.cursor = replace(self.cursor, position=position, last_key=position - 1 if position else None)
        return self.lag.look(self.cursor, self.check_seconds, batch_ends=batch_ends)

    @property
    def waiting(self) -> float | None:
        return REGISTRY.get_sample_value("modyn_supervisor_samples_waiting", {"run": "run-0001"})


@pytest.fixture
def stream() -> Iterator[Stream]:
    stream = Stream()
    yield stream
    stream.lag.close()


def test_a_warning_ends_with_the_last_batch_also_right_behind_another_look(stream: Stream) -> None:
    """Nothing may come after it: the warning would stay."""
    assert stream.go_on(arrived=1500, decided=100)
    assert not stream.go_on(arrived=0, decided=1400, seconds=1.0)
    assert stream.go_on(arrived=0, decided=0, seconds=1.0, batch_ends=True)
    assert stream.lag.warning == ""


def test_slow_checks_are_warned_of_until_the_run_has_caught_up(stream: Stream) -> None:
    assert stream.go_on(arrived=1500, decided=100)
    assert stream.lag.warning.startswith("checks take longer than the data takes to arrive: 1,400 samples wait; ")
    assert all(option in stream.lag.warning for option in ("evaluation_interval", "sample_size"))
    assert stream.waiting == 1400
    assert not stream.go_on(arrived=0, decided=100), "it still waits, and the number has not doubled"
    assert stream.go_on(arrived=2000, decided=100)
    assert "3,200 samples wait" in stream.lag.warning
    assert stream.go_on(arrived=0, decided=2000)
    assert stream.lag.warning == ""
    assert stream.waiting == 1200


def test_a_run_that_keeps_up_is_not_warned(stream: Stream) -> None:
    for _ in range(5):
        assert not stream.go_on(arrived=100, decided=100)


def test_time_that_goes_into_trainings_is_not_blamed_on_checks(stream: Stream) -> None:
    assert not stream.go_on(arrived=1500, decided=100, checking=0.4)
    assert stream.waiting == 1400


def test_history_at_the_start_is_no_lag() -> None:
    stream = Stream(held=1_000_000)
    for _ in range(5):
        assert not stream.go_on(arrived=50, decided=100)
    stream.lag.close()


def test_storage_is_asked_seldom_and_may_be_away(stream: Stream) -> None:
    assert not stream.go_on(arrived=1500, decided=100, seconds=LOOK_EVERY_S / 2)
    assert stream.waiting == 0
    stream.is_away = True
    assert not stream.go_on(arrived=0, decided=0, seconds=LOOK_EVERY_S)
    stream.is_away = False
    assert stream.go_on(arrived=0, decided=0, seconds=0.0), "of all the time since it was asked last"


class Warnings:
    """Stands for the journal of a run."""

    def __init__(self) -> None:
        self.journalled: list[str] = []

    def warn(self, warning: str) -> None:
        self.journalled.append(warning)


def test_the_run_shows_the_warning_once_and_that_it_is_over() -> None:
    warnings = Warnings()
    policy = build_trigger({"id": "DataAmountTrigger", "num_samples": 10}, TriggerContext())
    decisions = TriggerDecisions(policy, cast("RunJournal", warnings), "run-0001", ())
    for lag in ("", "slow", "slow", ""):
        decisions.warn(lag)
    assert warnings.journalled == ["slow", ""]
    decisions.check(Cursor(position=10, num_pending=10))
    assert decisions.seconds > 0


def test_a_production_run_looks_at_its_dataset(system_config: SystemConfig, tmp_path: Path) -> None:
    services = InMemoryServices(tmp_path)
    services.storage.add_dataset("train")
    services.storage.add_samples("train", timestamps=range(25))
    with serve_supervisor(services, system_config) as client:
        run_id = client.submit(pipeline_yaml(), "p.yaml", RunOptions(RunMode.PRODUCTION)).run_id

        def waiting() -> float | None:
            return REGISTRY.get_sample_value("modyn_supervisor_samples_waiting", {"run": run_id})

        eventually(lambda: waiting() is not None, "the run did not look")
        client.stop(run_id)
        eventually(lambda: client.run(run_id).is_terminal)
        assert waiting() is None


def test_a_run_that_has_ended_has_no_lag() -> None:
    stream = Stream()
    stream.lag.close()
    assert stream.waiting is None
    CheckLag("run-0002", lambda: 0, LOOK_EVERY_S).close()
