"""Runs that an outage interrupted are resumed, after pauses that grow."""

from __future__ import annotations

from modyn.errors import UnavailableError
from modyn.supervisor.keeper import RunKeeper
from modyn.testing.waiting import eventually


def test_a_run_is_resumed_until_it_can_be() -> None:
    asked: list[str] = []

    def resume(run_id: str) -> None:
        asked.append(run_id)
        if len(asked) < 3:
            raise UnavailableError("PostgreSQL cannot be reached")

    keeper = RunKeeper(resume, first_pause_s=0.01, longest_pause_s=0.02)
    keeper.interrupted("r-0001")
    keeper.interrupted("r-0001")
    eventually(lambda: len(asked) == 3)
    keeper.close()
    keeper.interrupted("r-0001")
    assert asked == ["r-0001"] * 3
