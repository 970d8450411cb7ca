"""What servers of predictions report, put together by run."""

from __future__ import annotations

import pytest

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
