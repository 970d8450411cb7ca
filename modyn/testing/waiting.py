"""Wait for other threads and processes, with limits that are long enough for a busy machine.

eventually(lambda: client.dataset("numbers").num_samples == 5)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 60.0
"""Seconds to wait for one event. If a test waits for several events, pytest's own time limit ends the test."""
REST_S = 2.0
"""Seconds without progress after which an operation counts as stuck. Even on a busy machine, a thread runs within this time."""

T = TypeVar("T")


def eventually(holds: Callable[[], T], describe: Callable[[], object] | str = "", *, timeout_s: float = PATIENCE_S) -> T:
    """Wait until `holds` returns a true value, and return this value. Raises AssertionError after `timeout_s`; the message has the result of
    `describe`.
    """
    began = time.monotonic()
    give_up = began + timeout_s
    while not (found := holds()):
        if time.monotonic() >= give_up:
            reason = describe if isinstance(describe, str) else str(describe())
            raise AssertionError(f"timed out after {timeout_s:g} s{': ' if reason else ''}{reason}")
        # Without this pause, calls of `holds` would take processor time from the other threads and processes.
        time.sleep(min(max(0.01, (time.monotonic() - began) / 10), 0.1))
    return found


def at_rest(number: Callable[[], int], at_least: int, *, rest_s: float = REST_S) -> int:
    """Wait until a number has reached `at_least` and has not changed for `rest_s` seconds, and return the number. Without `at_least`, the wait
    could end before the number has started to change.
    """
    eventually(lambda: number() >= at_least, lambda: f"{number()} never became {at_least}")
    before, since = number(), time.monotonic()
    while time.monotonic() < since + rest_s:
        time.sleep(0.05)
        if (now := number()) != before:
            before, since = now, time.monotonic()
    return before
