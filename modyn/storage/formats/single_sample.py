"""One sample per file: the whole file is the payload, and a label file next to it contains the label as one number."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field, model_validator

from modyn import _core
from modyn.errors import DataError
from modyn.storage.files.file_system import NameEndings, UnusableNowError
from modyn.storage.formats.base import FormatConfig, WholeFileFormat
from modyn.storage.formats.timestamps import out_of_range
from modyn.storage.model.samples import IndexedFiles

_THREADS = 4
"""Number of threads that read small files. The threads wait for the disk, so a few threads help on any number of cores."""
_FROM_THE_SYSTEM = frozenset(os.strerror(number) for number in errno.errorcode)
"""Texts of the operating system's errors, which concern the access to a file and not its content."""


class SingleSampleConfig(FormatConfig):
    """Options of `SingleSampleFileWrapper`."""

    file_extension: str = Field(min_length=1)
    """Ending of the names of sample files, e.g. `.png`."""
    label_file_extension: str = Field(min_length=1)
    """Ending of the names of label files, e.g. `.label`: the label of `a.png` is in `a.label`."""

    @model_validator(mode="after")
    def _differ(self) -> SingleSampleConfig:
        if self.label_file_extension.endswith(self.file_extension):
            raise ValueError(
                f"label_file_extension '{self.label_file_extension}' ends like file_extension '{self.file_extension}': "
                f"label files would be taken for samples"
            )
        return self


class SingleSampleFormat(WholeFileFormat):
    """A file is one sample. A file that is empty or has no label file is an error; usually it is still being written."""

    Config: ClassVar[type[SingleSampleConfig]] = SingleSampleConfig
    config: SingleSampleConfig
    reads_payloads = False
    isolated = False
    row_times = (r"(?!)", "a file of one sample has no rows: a SingleSampleFileWrapper allows '' and 'name:REGEX'")

    def endings(self) -> NameEndings:
        """Return the endings of sample files and of label files. Each sample file needs a label file."""
        return NameEndings(self.config.file_extension, self.config.label_file_extension)

    def index_files(self, paths: Sequence[str]) -> IndexedFiles:
        """Check sample and label files with a few threads. Payloads are not read."""
        endings = self.endings()
        sizes, mtimes_ns, labels, failed = _core.stat_and_read_numbers(
            paths, len(os.fsencode(endings.samples)), endings.companions, self.float_labels, self.roots, _THREADS
        )
        problems = {i: _problem(paths[i], at_fault, reason) for i, (at_fault, reason) in failed.items()}
        timestamps = mtimes_ns // 1_000_000_000
        # If a time is out of the range of int64, the core returns the largest or smallest int64.
        unreal = np.flatnonzero((mtimes_ns == 2**63 - 1) | (mtimes_ns == -(2**63)))
        for i in unreal.tolist() if not self.name_pattern else ():
            problems.setdefault(i, out_of_range(paths[i]))
        for i, found in enumerate(self.name_pattern.times(paths)) if self.name_pattern else ():
            if isinstance(found, DataError):
                problems.setdefault(i, found)
            else:
                timestamps[i] = found
        return IndexedFiles(sizes, labels, timestamps, problems, mtimes_ns)


def _problem(path: str, at_fault: str, reason: str) -> DataError:
    kind = UnusableNowError if reason in _FROM_THE_SYSTEM else DataError
    if at_fault == path:
        return kind(f"cannot use {path}: {reason}; correct or remove it")
    return kind(f"cannot use {path}: its label file {os.path.basename(at_fault)} has a problem: {reason}")
