"""Which files a worker process has imported, and whether they have changed since."""

from __future__ import annotations

import os
import sys
import time
from typing import Final

_CLOCK_STEP_NS: Final = 20_000_000
"""Times of files are behind the clock by up to so much."""
_WRITTEN_SINCE: Final = (-1, -1)
"""In place of the time and size of a file that may not be what was imported."""


class ImportedFiles:
    """The files of modules that this process imports from now on, as they are when they are imported.

    Not of packages that it has imported already: those change with the service, and PyTorch's compiler writes modules of its own.
    """

    def __init__(self) -> None:
        self._before = frozenset(sys.modules)
        self._scanned_at = time.time_ns() - _CLOCK_STEP_NS
        self._seen: dict[str, tuple[int, int] | None] = {}

    def remember(self) -> None:
        """Take up the files of modules that were imported since the call before. One that was written since then may differ from what was
        imported, and counts as changed."""
        for name in sys.modules.keys() - self._before:
            file = getattr(sys.modules.get(name), "__file__", None)
            if file and file not in self._seen and name.partition(".")[0] not in self._before:
                version = _version_of(file)
                self._seen[file] = version if version is None or version[0] < self._scanned_at else _WRITTEN_SINCE
        self._scanned_at = time.time_ns() - _CLOCK_STEP_NS

    def have_changed(self) -> bool:
        """Whether any of them was altered or removed since."""
        return any(_version_of(file) != version for file, version in self._seen.items())


def _version_of(file: str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
