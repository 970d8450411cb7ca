"""Runs that an outage interrupted are resumed, after pauses that grow."""

from __future__ import annotations

from modyn.errors import UnavailableError
from modyn.supervisor.auto_resume import AutoResume
from modyn.testing.waiting import eventually


def test_a_run_is_resumed_until_it_can_be() -> None:
    asked: list[str] = []

    def resume(run_id: str) -> None:
        asked.append(run_id)
        if len(asked) < 3:
            raise UnavailableError("PostgreSQL cannot be reached")

    resumer = AutoResume(resume, first_pause_s=0.01, longest_pause_s=0.02)
    resumer.interrupted("r-0001")
    resumer.interrupted("r-0001")
    eventually(lambda: len(asked) == 3)
    resumer.close()
    resumer.interrupted("r-0001")
    assert asked == ["r-0001"] * 3


def test_a_run_that_went_on_for_long_starts_with_the_first_pause() -> None:
    now, asked = [0.0], list[str]()
    resumer = AutoResume(asked.append, first_pause_s=0.01, longest_pause_s=0.04, clock=lambda: now[0])
    pauses = []
    for passes_s in (0.0, 0.0, 0.04, 0.05):
        now[0] += passes_s
        pauses.append(resumer.interrupted("r-0001"))
        eventually(lambda: len(asked) == len(pauses))
    resumer.close()
    assert pauses == [0.01, 0.02, 0.04, 0.01]


def test_an_error_of_any_kind_does_not_end_the_attempts() -> None:
    asked: list[str] = []

    def resume(run_id: str) -> None:
        asked.append(run_id)
        if len(asked) == 1:
            raise RuntimeError("can't start new thread")

    resumer = AutoResume(resume, first_pause_s=0.01, longest_pause_s=0.01)
    resumer.interrupted("r-0001")
    eventually(lambda: len(asked) == 2)
    resumer.close()
