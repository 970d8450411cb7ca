"""Trainings lower their priority next to predictions, and never raise it again."""

from __future__ import annotations

import os
from multiprocessing import get_context

from modyn.trainer_server.train import lower_priority


def niceness_after(steps: tuple[int, ...]) -> list[int]:
    """Return the niceness of this process after each time that it lowered its priority, relative to its start."""
    before, found = os.nice(0), []
    for step in steps:
        lower_priority(before + step)
        found.append(os.nice(0) - before)
    return found


def test_a_process_is_at_least_as_nice_as_it_should_be() -> None:
    with get_context("fork").Pool(1) as pool:
        assert pool.apply(niceness_after, ((0, 3, 0),)) == [0, 3, 3]
