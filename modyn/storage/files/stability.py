"""Which files are still being written: a file is taken once it, and what must stand beside it, has rested for the settle time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modyn.storage.files.file_system import FileSystem
from modyn.storage.files.listing import UNKNOWN, SeenFile, SeenFiles
from modyn.storage.formats.base import FileFormat

COMPANION_PATIENCE_S = 5.0
"""A file whose companion (its label file) is missing for longer is reported."""


@dataclass(frozen=True, slots=True)
class _Rest:
    state: tuple[int, int]
    since: float


class Settling:
    """Remembers files that looked unfinished. Times: `now` is seconds since 1970, `tick` a clock that never jumps."""

    def __init__(self, settle_s: float) -> None:
        self.settle_s = settle_s
        self._resting: dict[str, _Rest] = {}

        self.num_unsettled = 0
        """Files that the last `ripe` left for later and that only want time."""

    def ripe(
        self, folder: FileSystem, files: SeenFiles, file_format: FileFormat, now: float, tick: float
    ) -> tuple[SeenFiles, dict[str, str]]:
        """Those of `files` that may be indexed now, in their order, and path → reason for those that wait for too long already.

        A file is ripe if its last change is older than the settle time, or if it has been the same for that long, whatever its
        own time says: clocks of other machines and restored archives put it into the future.
        """
        late: dict[str, str] = {}
        resting: dict[str, _Rest] = {}
        unsettled = 0
        ready = (files.changed_ns != UNKNOWN) & (now - files.changed_ns / 1e9 >= self.settle_s)
        for position in np.flatnonzero(~ready).tolist():
            file = files[position]
            missing, newest = self._companions(folder, file, file_format)
            state = (file.size, max(file.mtime_ns, newest))
            rest = self._resting.get(file.path)
            if rest is None or rest.state != state:
                rest = _Rest(state, tick)
            old_enough = now - state[1] / 1e9 >= self.settle_s or tick - rest.since >= self.settle_s
            if missing is None and old_enough:
                ready[position] = True
                continue
            resting[file.path] = rest
            unsettled += missing is None
            age_s = max(tick - rest.since, now - state[1] / 1e9)
            if missing is not None and age_s > COMPANION_PATIENCE_S:
                late[file.path] = f"{missing} is missing, which must stand beside the file; it is indexed once that is there"
        self._resting, self.num_unsettled = resting, unsettled
        return files if ready.all() else files.take(np.flatnonzero(ready)), late

    @staticmethod
    def _companions(folder: FileSystem, file: SeenFile, file_format: FileFormat) -> tuple[str | None, int]:
        """The first companion that is not there, and the newest change (ns) of the others."""
        newest = 0
        for companion in file_format.companions(folder.full_path(file.path)):
            status = folder.status(companion)
            if status is None:
                return companion, newest
            newest = max(newest, status.mtime_ns)
        return None, newest
