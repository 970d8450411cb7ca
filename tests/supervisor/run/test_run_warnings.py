"""A run warns while its checks are slower than its data, and while everything that arrives is late."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from modyn.config.system import SystemConfig
from modyn.errors import UnavailableError
from modyn.records import MIN_TIMESTAMP, RunId, SampleBatch
from modyn.supervisor.client import RunMode, RunOptions
from modyn.supervisor.journal.cursor import Cursor
from modyn.supervisor.journal.journal import RunJournal
from modyn.supervisor.run.run_warnings import CheckLag, LateSamples, ShownWarning
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

    def advance(
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


def test_a_warning_ends_with_the_last_batch_also_right_after_another_look(stream: Stream) -> None:
    """No batch may follow, so the warning would otherwise remain."""
    assert stream.advance(arrived=1500, decided=100)
    assert not stream.advance(arrived=0, decided=1400, seconds=1.0)
    assert stream.advance(arrived=0, decided=0, seconds=1.0, batch_ends=True)
    assert stream.lag.warning == ""


def test_slow_checks_are_warned_of_until_the_run_has_caught_up(stream: Stream) -> None:
    assert stream.advance(arrived=1500, decided=100)
    assert stream.lag.warning.startswith("checks take longer than the data takes to arrive: 1,400 samples wait; ")
    assert all(option in stream.lag.warning for option in ("evaluation_interval", "sample_size"))
    assert stream.waiting == 1400
    assert not stream.advance(arrived=0, decided=100), "it still waits, and the number has not doubled"
    assert stream.advance(arrived=2000, decided=100)
    assert "3,200 samples wait" in stream.lag.warning
    assert stream.advance(arrived=0, decided=2000)
    assert stream.lag.warning == ""
    assert stream.waiting == 1200


def test_a_run_that_keeps_up_is_not_warned(stream: Stream) -> None:
    for _ in range(5):
        assert not stream.advance(arrived=100, decided=100)


def test_time_that_goes_into_trainings_is_not_blamed_on_checks(stream: Stream) -> None:
    assert not stream.advance(arrived=1500, decided=100, checking=0.4)
    assert stream.waiting == 1400


def test_history_at_the_start_is_not_a_lag() -> None:
    stream = Stream(held=1_000_000)
    for _ in range(5):
        assert not stream.advance(arrived=50, decided=100)
    stream.lag.close()


def test_storage_is_asked_seldom_and_may_be_away(stream: Stream) -> None:
    assert not stream.advance(arrived=1500, decided=100, seconds=LOOK_EVERY_S / 2)
    assert stream.waiting == 0
    stream.is_away = True
    assert not stream.advance(arrived=0, decided=0, seconds=LOOK_EVERY_S)
    stream.is_away = False
    assert stream.advance(arrived=0, decided=0, seconds=0.0), "of all the time since it was asked last"


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


class Warnings:
    """A journal that notes the warnings of a run."""

    run_id = RunId("run-0001")

    def __init__(self) -> None:
        self.journalled: list[str] = []

    def warn(self, warning: str) -> None:
        self.journalled.append(warning)


def test_a_run_shows_a_warning_once_and_that_it_is_over() -> None:
    journal = Warnings()
    warning = ShownWarning(cast("RunJournal", journal))
    for lag, of_steps in (("", ""), ("slow", ""), ("slow", ""), ("slow", "behind"), ("", "")):
        warning.show(lag, of_steps)
    assert journal.journalled == ["slow", "slow\nbehind", ""]


def batch(timestamps: Sequence[int]) -> SampleBatch:
    times = np.array(timestamps, dtype=np.int64)
    return SampleBatch(times, times, times)


@pytest.mark.parametrize(
    ("timestamps", "warns"),
    [
        pytest.param([0, 1000, 11, 15], False, id="late samples within the span"),
        pytest.param([0, 1000, 11, 15, 21], True, id="late samples over the whole span"),
        pytest.param([0, 1000, 11, 15, 21, 1005], False, id="a new sample ends it"),
        pytest.param([0, 1000, 11, 1005, 21], False, id="a new sample between them"),
        pytest.param([0, 5, 10, 20, 30, 40], False, id="in order"),
    ],
)
def test_a_stream_whose_samples_are_all_late_is_noticed(timestamps: list[int], warns: bool) -> None:
    late = LateSamples(None)
    late.observe(batch(timestamps))
    assert bool(late.warning(10)) == warns
    if warns:
        assert "1970-01-01 00:16:40" in late.warning(10)


def test_a_resumed_run_knows_the_newest_timestamp() -> None:
    late = LateSamples(1000)
    late.observe(batch([11, 15, 21]))
    assert late.warning(10)


@given(st.lists(st.integers(-50, 200), max_size=40), st.integers(1, 9), st.integers(1, 30))
def test_warnings_are_as_the_rule_says_in_any_batches(timestamps: list[int], size: int, span_s: int) -> None:
    late_times, newest = list[int](), MIN_TIMESTAMP
    for time in timestamps:
        newest = max(newest, time)
        late_times = [] if time == newest else [*late_times, time]
    late = LateSamples(None)
    for start in range(0, len(timestamps), size):
        late.observe(batch(timestamps[start : start + size]))
    assert bool(late.warning(span_s)) == (bool(late_times) and max(late_times) - min(late_times) >= span_s)
