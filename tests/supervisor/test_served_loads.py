"""What servers of predictions report, put together by run."""

from __future__ import annotations

import pytest

from modyn.errors import InvalidArgumentError
from modyn.records import ServingLoad
from modyn.supervisor.served_loads import KEPT_S, ServedLoads


class Clock:
    """Seconds that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_servers_of_a_run_are_put_together_and_forgotten_when_they_are_silent() -> None:
    clock = Clock()
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
def test_what_is_no_load_is_refused(load: ServingLoad) -> None:
    loads = ServedLoads(lambda: 5.0)
    with pytest.raises(InvalidArgumentError, match=r"the load of a server has (rate nan|mean_s -0\.1, p99_s inf); report finite"):
        loads.report("a", "one", load)
    assert loads.of("a") == ServingLoad(at=5.0)


def test_reports_that_are_asked_for_by_none_do_not_stay() -> None:
    clock = Clock()
    loads = ServedLoads(lambda: 5.0, clock)
    for number in range(10):
        loads.report(f"unknown-{number}", "one", ServingLoad(1.0, 1.0, 1.0, 1))
        clock.now += KEPT_S + 0.1
    assert len(loads._reports) == 1
