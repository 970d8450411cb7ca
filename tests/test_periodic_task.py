"""Actions that are repeated in a thread."""

from __future__ import annotations

import threading

from modyn.periodic_task import PeriodicTask
from modyn.testing.waiting import PATIENCE_S


def test_a_round_that_fails_does_not_end_the_rounds() -> None:
    errors, third = list[Exception](), threading.Event()

    def fail() -> None:
        raise OSError("no disk")

    def count() -> None:
        if len(errors) == 3:
            third.set()

    task = PeriodicTask("test", 0.001, [fail, count], errors.append)
    task.start()
    assert third.wait(PATIENCE_S)
    task.close()
    assert {str(error) for error in errors} == {"no disk"}


def test_the_first_round_may_come_after_the_first_pause() -> None:
    calls = list[int]()
    task = PeriodicTask("test", 3600.0, [lambda: calls.append(1)], lambda error: None, 3600.0)
    task.start()
    task.close(PATIENCE_S)
    assert not calls
    rounds = threading.Event()
    soon = PeriodicTask("test", 0.001, [rounds.set], lambda error: None, 0.001)
    soon.start()
    assert rounds.wait(PATIENCE_S)
    soon.close()
