"""File formats whose files say what their parser does. Imported by the processes that index, and light for them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from modyn.errors import DataError
from modyn.storage.formats.base import FileFormat, FormatConfig, FormatResume, WholeFileFormat
from modyn.storage.model.samples import IndexedFiles, IndexedSamples


def behave(path: str) -> int:
    """Do what the file says: a label, or what a parser must not do."""
    what = Path(path).read_text()
    match what:
        case "abort":
            os.abort()
        case "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hang":
            time.sleep(3600)
        case "spin":
            while True:
                pass
        case "allocate":
            held = []
            while True:
                held.append(b"x" * (1 << 20))
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "bug":
            raise KeyError(what)
    return int(what)


class Unruly(FileFormat):
    """A format with one sample per file."""

    Config: ClassVar[type[FormatConfig]] = FormatConfig

    def holds_samples(self, path: str) -> bool:
        """Take files that end with .u."""
        return path.endswith(".u")

    def index(self, path: str, resume: FormatResume | None = None) -> Iterator[IndexedSamples]:
        """Yield the label in the file, with the process that found it as the time."""
        label = behave(path)
        size = os.path.getsize(path)
        yield IndexedSamples(np.zeros(1, np.int64), size, np.array([label], np.int64), os.getpid(), size)


class UnrulyTogether(WholeFileFormat):
    """The same, many files with one call."""

    Config: ClassVar[type[FormatConfig]] = FormatConfig

    def holds_samples(self, path: str) -> bool:
        """Take files that end with .u."""
        return path.endswith(".u")

    def index(self, path: str, resume: FormatResume | None = None) -> Iterator[IndexedSamples]:
        """Not called for files that are indexed together."""
        raise NotImplementedError

    def index_files(self, paths: Sequence[str]) -> IndexedFiles:
        """Find the labels in the files."""
        missing = [i for i, path in enumerate(paths) if not os.path.exists(path)]
        labels = np.array([0 if i in missing else behave(path) for i, path in enumerate(paths)], np.int64)
        sizes = np.array([0 if i in missing else os.path.getsize(path) for i, path in enumerate(paths)], np.int64)
        problems = {i: DataError(f"{paths[i]} is not there") for i in missing}
        return IndexedFiles(sizes, labels, np.full(len(paths), os.getpid()), problems)


class UnrulyHere(Unruly):
    """Declares that its parser is ours."""

    isolated = False
