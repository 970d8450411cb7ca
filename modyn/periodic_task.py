"""Actions that a service repeats in a thread of its own: retention, the search for orphaned runs, the scrub of indexes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


class PeriodicTask:
    """Calls actions in a thread of its own, after `first_s` seconds and then every `every_s` seconds, until it is closed.

    Args: on_error: called with what an action raised; the thread goes on.
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
        self._closed = threading.Event()  # Ends the pause between two rounds.
        self._thread = threading.Thread(target=self._repeat, name=name, daemon=True)

    def start(self) -> None:
        """Begin with the first round, or with the pause before it."""
        self._thread.start()

    def close(self, timeout_s: float = 5.0) -> bool:
        """End the thread; a round that is under way gets so much time. Returns whether it has ended."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)  # Woken by the end of the round that is under way; at most so long.
        return not self._thread.is_alive()

    def _repeat(self) -> None:
        pause_s = self._first_s
        while not self._closed.wait(pause_s):  # Woken by `close`; at most until the next round.
            for action in self._actions:
                try:
                    action()
                except Exception as error:  # noqa: BLE001 - it would end the thread, and all later rounds with it
                    self._on_error(error)
            pause_s = self._every_s
