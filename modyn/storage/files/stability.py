"""Detects files that are still being written. A file is stable when neither the file nor its companion has changed for the settle time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from modyn.storage.files.file_system import UNKNOWN, FileSystem, SeenFile, SeenFiles

COMPANION_WAIT_S = 5.0
"""Seconds after which a file without its companion (its label file) is reported."""


class StabilityTracker:
    """Stores the files that seemed unfinished. Times: `now` is in seconds since 1970, `tick` is in seconds of a monotonic clock."""

    def __init__(self, settle_s: float) -> None:
        self.settle_s = settle_s
        self.num_unstable = 0
        """Number of files that the last call of `stable` postponed only because they are not stable yet, not because a companion is missing."""
        self._observed: dict[str, tuple[tuple[int, int], float]] = {}
        """For each file: size and last change, and the tick at which both were first observed."""
        self._unended: dict[str, tuple[tuple[int, int], float, float]] = {}
        """For each file whose last row has no end: size and modification time, the tick at which both were first observed, and the seconds for which
        both must stay the same."""

    def await_end(self, file: SeenFile, wait_s: float, tick: float) -> None:
        """Postpone the last row of a file until the file changes, or stays unchanged for `wait_s`."""
        state = (file.size, file.mtime_ns)
        known, since, _ = self._unended.get(file.path, (state, tick, 0.0))
        self._unended[file.path] = state, since if known == state else tick, wait_s

    def has_grown(self, file: SeenFile) -> bool:
        """Whether a file is longer than at its last `await_end`."""
        return file.path in self._unended and self._unended[file.path][0][0] < file.size

    def is_at_rest(self, file: SeenFile, wait_s: float, now: float, tick: float) -> bool:
        """Whether a file has not changed for `wait_s` seconds, according to its modification time or to the observations since `await_end`."""
        state = (file.size, file.mtime_ns)
        known, since, _ = self._unended.get(file.path, (state, tick, 0.0))
        return max(tick - since if known == state else 0.0, now - file.mtime_ns / 1e9) >= wait_s

    def _awaits_end(self, file: SeenFile, now: float, tick: float) -> bool:
        state, _, wait_s = self._unended[file.path]
        return state == (file.size, file.mtime_ns) and not self.is_at_rest(file, wait_s, now, tick)

    def stable(
        self, folder: FileSystem, files: SeenFiles, companions: Callable[[str], Sequence[str]], now: float, tick: float
    ) -> tuple[SeenFiles, dict[str, str]]:
        """Select the files that may be indexed now.

        A file is stable if its last change is older than the settle time, or if no change was observed for the settle time. The observation is needed
        because clocks of other machines and restored archives can set a file's time into the future.
        Args: companions: full path of a file → full paths of the files that must exist next to it.
        Returns: the stable files in their order, and path → reason for the files that have waited too long for a companion.
        """
        late: dict[str, str] = {}
        observed = {}
        unstable = 0
        ready = (files.changed_ns != UNKNOWN) & (now - files.changed_ns / 1e9 >= self.settle_s)
        for position in np.flatnonzero(~ready).tolist():
            file = files[position]
            statuses = {path: folder.status(path) for path in companions(folder.full_path(file.path))}
            missing = next((path for path, status in statuses.items() if status is None), None)
            state = (file.size, max(file.mtime_ns, *(status.mtime_ns for status in statuses.values() if status), 0))
            known, since = self._observed.get(file.path, (state, tick))
            since = since if known == state else tick
            # An old file is stable when it is first observed. Clocks of other machines may differ, so the observed time counts too.
            age_s = max(tick - since, now - state[1] / 1e9)
            if missing is None and age_s >= self.settle_s:
                ready[position] = True
                continue
            observed[file.path] = state, since
            unstable += missing is None
            if missing is not None and age_s > COMPANION_WAIT_S:
                late[file.path] = f"{missing} is missing, which must be next to the file; the file is indexed when it is there"
        self._observed, self.num_unstable = observed, unstable
        waiting = [position for position, path in enumerate(files.paths) if path in self._unended] if self._unended else []
        # Files that are no longer listed are forgotten.
        self._unended = {path: self._unended[path] for path in map(files.paths.__getitem__, waiting)}
        for position in waiting:
            ready[position] &= not self._awaits_end(files[position], now, tick)
        return files if ready.all() else files.take(np.flatnonzero(ready)), late
