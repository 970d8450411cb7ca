"""When files are tried again that could not be read."""

from __future__ import annotations

from collections.abc import Container


class RetrySchedule:
    """When files are tried again that could not be read though they did not change. In memory only: a restart tries all of them.

    `tick` is seconds of a clock that never jumps; `path` lies in the dataset's folder. Each pause is twice the last one, so that a broken
    disk is not asked for all files at each scan.
    """

    FIRST_S, LONGEST_S = 1.0, 300.0

    def __init__(self) -> None:
        self._pauses: dict[str, tuple[float, float]] = {}
        self._apart: set[str] = set()

    def failed(self, path: str, tick: float, *, alone: bool = False) -> None:
        """Note that the file could not be read at `tick`. `alone`: see `is_apart`."""
        if alone:
            self._apart.add(path)
        pause = min(self.LONGEST_S, 2 * self._pauses[path][1]) if path in self._pauses else self.FIRST_S
        self._pauses[path] = tick + pause, pause

    def is_due(self, path: str, tick: float) -> bool:
        """Whether the file may be tried again at `tick`."""
        return path not in self._pauses or tick >= self._pauses[path][0]

    def is_apart(self, path: str) -> bool:
        """Whether the file failed although it was asked for alone: others are to come before it."""
        return path in self._apart

    def keep_only(self, problems: Container[str]) -> None:
        """Forget files that are no problem any more."""
        self._pauses = {path: pause for path, pause in self._pauses.items() if path in problems}
        self._apart = {path for path in self._apart if path in problems}
