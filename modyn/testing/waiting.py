"""Wait for other threads and processes, for as long as a machine may take that is busy with other work.

eventually(lambda: client.dataset("numbers").num_samples == 5)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 60.0
"""Seconds for one event. A test that waits for several ends by pytest's own limit."""
REST_S = 2.0
"""What has not moved for so long stands still: even a starved thread gets its turn by then."""

T = TypeVar("T")


def eventually(holds: Callable[[], T], describe: Callable[[], object] | str = "", *, timeout_s: float = PATIENCE_S) -> T:
    """Return what `holds` returns, once that is true.

    Raises: AssertionError: it never was; with `describe`, which is called at the end.
    """
    began = time.monotonic()
    give_up = began + timeout_s
    while not (found := holds()):
        if time.monotonic() >= give_up:
            reason = describe if isinstance(describe, str) else str(describe())
            raise AssertionError(f"waited in vain for {timeout_s:g} s{': ' if reason else ''}{reason}")
        time.sleep(
            min(max(0.01, (time.monotonic() - began) / 10), 0.1)
        )  # A question takes processor time from what is waited for.
    return found


def at_rest(number: Callable[[], int], at_least: int, *, rest_s: float = REST_S) -> int:
    """The number, once it has reached `at_least` and then stayed the same for `rest_s`. Below that it may only not have begun."""
    eventually(lambda: number() >= at_least, lambda: f"{number()} never became {at_least}")
    before, since = number(), time.monotonic()
    while time.monotonic() < since + rest_s:
        time.sleep(0.05)
        if (now := number()) != before:
            before, since = now, time.monotonic()
    return before
