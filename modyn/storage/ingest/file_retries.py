"""When files are tried again that could not be read, though nothing about them changed."""

from __future__ import annotations

from collections.abc import Container

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
"""Each pause is twice the last one: a disk that is out of order is not asked for all of its files with each look."""

AGAIN = "again "
"""Stands before the state of such a file, which is the signature of none."""


class Retries:
    """In memory only: storage tries all of them when it starts again. Times are of a clock that never jumps."""

    def __init__(self) -> None:
        self._pauses: dict[str, tuple[float, float]] = {}

    def failed(self, path: str, tick: float) -> None:
        pause = min(LONGEST_PAUSE_S, 2 * self._pauses[path][1]) if path in self._pauses else FIRST_PAUSE_S
        self._pauses[path] = tick + pause, pause

    def is_due(self, path: str, tick: float) -> bool:
        return path not in self._pauses or tick >= self._pauses[path][0]

    def keep_only(self, problems: Container[str]) -> None:
        """Files that are no problem any more are forgotten."""
        self._pauses = {path: pause for path, pause in self._pauses.items() if path in problems}
