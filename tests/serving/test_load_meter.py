"""The load that a server measures and reports."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import UnavailableError
from modyn.records import ServingLoad
from modyn.serving.load_meter import MOST, WINDOW_S, LoadMeter, load_reports
from modyn.testing.waiting import eventually


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@given(requests=st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(0.001, 3.0)), max_size=40))
def test_it_measures_the_last_seconds(requests: list[tuple[float, float]]) -> None:
    clock = Clock()
    meter, ended = LoadMeter(clock), list[tuple[float, float]]()
    for gap, seconds in requests:
        clock.now += gap
        meter.answered(seconds)
        ended.append((clock.now, seconds))
    clock.now += 0.5
    start = max(clock.now - WINDOW_S, 0.0)
    newest, load = [seconds for at, seconds in ended if at >= start], meter.load()
    assert load.rate == pytest.approx(len(newest) / (clock.now - start))
    assert load.num_servers == 1
    if newest:
        assert load.mean_s == pytest.approx(np.mean(newest))
        assert load.p99_s == pytest.approx(np.quantile(newest, 0.99))
    else:
        assert (load.mean_s, load.p99_s) == (0.0, 0.0)


def test_of_very_many_requests_the_newest_are_measured() -> None:
    clock = Clock()
    meter = LoadMeter(clock)
    for number in range(2 * MOST):
        clock.now += 0.0001
        meter.answered(0.001 if number < MOST else 0.002)
    load = meter.load()
    assert load.rate == pytest.approx(10_000, rel=0.01)
    assert load.mean_s == pytest.approx(0.002)


def test_reports_go_on_after_one_that_failed() -> None:
    reported, failed = list[ServingLoad](), threading.Event()
    meter = LoadMeter()
    meter.answered(0.25)

    def report(load: ServingLoad) -> None:
        if not failed.is_set():
            failed.set()
            raise UnavailableError("the supervisor is away")
        reported.append(load)

    with load_reports(meter, report, every_s=0.01):
        eventually(lambda: len(reported) >= 2)
    assert reported[0].mean_s == 0.25
