"""The load that a server measures and reports."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.errors import UnavailableError
from modyn.latencies import histogram, merged
from modyn.records import ServingLoad, VersionRole, VersionUse
from modyn.serving.load_meter import MOST, WINDOW_S, LoadMeter, load_reports
from modyn.serving.versions.predictor import VersionName
from modyn.testing.waiting import eventually

NAME = VersionName("m", "1")


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
        meter.add(NAME, VersionRole.SERVING, seconds)
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
        meter.add(NAME, VersionRole.SERVING, 0.001 if number < MOST else 0.002)
    load = meter.load()
    assert load.rate == pytest.approx(10_000, rel=0.01)
    assert load.mean_s == pytest.approx(0.002)


def test_requests_are_counted_by_version_and_role_until_they_are_reported() -> None:
    clock = Clock()
    meter = LoadMeter(clock)
    assert meter.uses({VersionRole.SERVING: "1"}) == [VersionUse(1, VersionRole.SERVING, 0.0, {})]
    for version, role in (
        ("1", VersionRole.SERVING),
        ("1", VersionRole.PINNED),
        ("2", VersionRole.CANARY),
        ("2", VersionRole.CANARY),
    ):
        meter.add(VersionName("m", version), role, 0.25)
    clock.now += 10
    one, two = histogram(np.array([0.25])), histogram(np.array([0.25, 0.25]))
    roles = {VersionRole.SERVING: "2", VersionRole.SHADOW: "3"}
    expected = [
        VersionUse(2, VersionRole.SERVING, 0.0, {}),
        VersionUse(3, VersionRole.SHADOW, 0.0, {}),
        VersionUse(1, VersionRole.SERVING, None, one),
        VersionUse(1, VersionRole.PINNED, None, one),
        VersionUse(2, VersionRole.CANARY, None, two),
    ]
    assert meter.uses(roles) == expected
    clock.now += 1
    meter.add(VersionName("m", "2"), VersionRole.SERVING, 0.25)
    assert meter.uses(roles)[0] == VersionUse(2, VersionRole.SERVING, 1.0, one)  # what did not arrive is reported again
    assert meter.uses(roles)[-1] == VersionUse(2, VersionRole.CANARY, None, two)
    meter.clear_reported()
    assert meter.uses(roles) == [VersionUse(2, VersionRole.SERVING, 1.0, {}), VersionUse(3, VersionRole.SHADOW, 1.0, {})]


def test_a_pinned_version_is_reported_while_no_request_names_it() -> None:
    meter = LoadMeter(Clock(), pinned=(7,))
    assert meter.uses({}) == [VersionUse(7, VersionRole.PINNED, None, {})]
    meter.add(VersionName("m", "7"), VersionRole.PINNED, 0.25)
    assert meter.uses({}) == [VersionUse(7, VersionRole.PINNED, None, histogram(np.array([0.25])))]


def test_reports_go_on_after_one_that_failed_and_the_last_one_has_the_last_answers() -> None:
    reported, failed = list[tuple[ServingLoad, Sequence[VersionUse]]](), threading.Event()
    meter = LoadMeter()
    meter.add(NAME, VersionRole.SERVING, 0.25)

    def report(load: ServingLoad, versions: Sequence[VersionUse]) -> None:
        if not failed.is_set():
            failed.set()
            raise UnavailableError("the supervisor is away")
        reported.append((load, versions))

    roles = {VersionRole.SERVING: "1"}
    with load_reports(meter, roles.copy, report, every_s=0.01):
        eventually(lambda: len(reported) >= 2)
        meter.add(NAME, VersionRole.SERVING, 1.0)
        roles.clear()  # the server is closed
    assert reported[0][0].mean_s == 0.25
    assert reported[-1][1][0].seconds is not None, "it is in use until the last report"
    counted = merged(use.latencies for _, versions in reported for use in versions)
    assert counted == histogram(np.array([0.25, 1.0]))


def test_a_last_report_that_fails_ends_the_reports_all_the_same() -> None:
    tried = list[ServingLoad]()

    def report(load: ServingLoad, versions: Sequence[VersionUse]) -> None:
        tried.append(load)
        raise UnavailableError("the supervisor is away")

    with load_reports(LoadMeter(), dict, report, every_s=60.0):
        eventually(lambda: len(tried) == 1)  # the first one
    assert len(tried) == 2
