"""Reports of prediction servers, combined by run."""

from __future__ import annotations

import pytest

from modyn.errors import InvalidArgumentError
from modyn.latencies import MAX_BUCKET
from modyn.records import ServingLoad, VersionRole, VersionUse
from modyn.supervisor.journal.records import ServedVersion, ServingStatus
from modyn.supervisor.served.loads import KEPT_S, ServedLoads
from tests.support.clock import Clock


def test_servers_of_a_run_are_put_together_and_forgotten_when_they_are_silent() -> None:
    clock = Clock(100.0)
    loads = ServedLoads(lambda: 5.0, clock)
    loads.report("a", "one", ServingLoad(10.0, 0.1, 0.5, 1))
    clock.now += KEPT_S / 2
    loads.report("a", "two", ServingLoad(30.0, 0.3, 0.4, 1))
    loads.report("b", "one", ServingLoad(1.0, 1.0, 1.0, 1))
    found = loads.of("a")
    assert (found.rate, found.p99_s, found.num_servers, found.at) == (40.0, 0.5, 2, 5.0)
    assert found.mean_s == pytest.approx((10 * 0.1 + 30 * 0.3) / 40)
    clock.now += KEPT_S / 2 + 0.1
    assert loads.of("a") == ServingLoad(30.0, 0.3, 0.4, 1, 5.0)
    clock.now += KEPT_S
    assert loads.of("a") == ServingLoad(at=5.0) == loads.of("never")


def test_a_server_without_requests_counts_without_weight() -> None:
    loads = ServedLoads(lambda: 5.0)
    loads.report("a", "one", ServingLoad(num_servers=1))
    assert loads.of("a") == ServingLoad(num_servers=1, at=5.0)


@pytest.mark.parametrize("load", [ServingLoad(float("nan"), 0.1, 0.1, 1), ServingLoad(1.0, -0.1, float("inf"), 1)])
def test_numbers_that_are_not_a_load_are_refused(load: ServingLoad) -> None:
    loads = ServedLoads(lambda: 5.0)
    with pytest.raises(InvalidArgumentError, match=r"the load of a server has (rate nan|mean_s -0\.1, p99_s inf); report finite"):
        loads.report("a", "one", load)
    assert loads.of("a") == ServingLoad(at=5.0)


def test_the_versions_in_use_are_those_of_all_servers_since_the_first() -> None:
    clock = Clock(100.0)
    loads = ServedLoads(lambda: 1_000.0 + clock.now, clock)
    serving, shadow = VersionUse(17, VersionRole.SERVING, 50.0, {8184: 3}), VersionUse(18, VersionRole.SHADOW, 0.0, {})
    loads.report("a", "one", ServingLoad(10.0, 0.1, 0.5, 1), [shadow, serving])
    clock.now += 1
    newer = VersionUse(17, VersionRole.SERVING, 90.0, {})
    loads.report("a", "two", ServingLoad(30.0, 0.3, 0.4, 1), [newer, VersionUse(16, VersionRole.PINNED, None, {8184: 1})])
    versions = (ServedVersion(17, VersionRole.SERVING, 1_011.0), ServedVersion(18, VersionRole.SHADOW, 1_100.0))
    assert loads.status("a") == ServingStatus(40.0, 0.5, 2, versions)
    clock.now += KEPT_S + 1
    assert loads.status("a") == ServingStatus()


@pytest.mark.parametrize(
    "use",
    [
        VersionUse(1, VersionRole.SERVING, float("nan"), {}),
        VersionUse(1, VersionRole.SERVING, 1.0, {-1: 2}),
        VersionUse(1, VersionRole.SERVING, 1.0, {MAX_BUCKET: 2}),
        VersionUse(1, VersionRole.SERVING, 1.0, {8184: -2}),
    ],
)
def test_numbers_that_are_not_a_report_of_a_version_are_refused(use: VersionUse) -> None:
    loads = ServedLoads(lambda: 5.0)
    with pytest.raises(InvalidArgumentError, match=r"the report of version 1 has seconds .*; report finite seconds, and counts"):
        loads.report("a", "one", ServingLoad(num_servers=1), [use])
    assert loads.status("a").num_servers == 0


def test_reports_that_are_asked_for_by_none_do_not_stay() -> None:
    clock = Clock(100.0)
    loads = ServedLoads(lambda: 5.0, clock)
    for number in range(10):
        loads.report(f"unknown-{number}", "one", ServingLoad(1.0, 1.0, 1.0, 1))
        clock.now += KEPT_S + 0.1
    assert len(loads._reports) == 1
