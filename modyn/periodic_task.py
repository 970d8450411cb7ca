"""Actions that a service repeats in a thread, such as retention and the scrub of indexes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


class PeriodicTask:
    """Calls actions in its own thread, after `first_s` seconds and then every `every_s` seconds, until it is closed.

    Args: on_error: called with the error of an action; the thread then continues.
    """

    def __init__(
        self,
        name: str,
        every_s: float,
        actions: Sequence[Callable[[], object]],
        on_error: Callable[[Exception], object],
        first_s: float = 0.0,
    ) -> None:
        self._every_s = every_s
        self._actions = actions
        self._on_error = on_error
        self._first_s = first_s
        self._closed = threading.Event()  # `close` sets this event, which ends the pause between two rounds.
        self._thread = threading.Thread(target=self._repeat, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, timeout_s: float = 5.0) -> bool:
        """Stop the thread, and wait at most `timeout_s` seconds for the current round. Returns whether the thread has ended."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)  # the end of the current round ends this wait
        return not self._thread.is_alive()

    def _repeat(self) -> None:
        pause_s = self._first_s
        while not self._closed.wait(pause_s):  # `close` or the time of the next round ends this wait
            for action in self._actions:
                try:
                    action()
                except Exception as error:  # noqa: BLE001 - the error would end the thread and all later rounds
                    self._on_error(error)
            pause_s = self._every_s
