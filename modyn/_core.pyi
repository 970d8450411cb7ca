"""The C++ core: gathering records from files, indexing CSV, mapping our own files. Everything here releases the GIL."""

import os
from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt

from modyn.errors import DataError

PathLike = str | bytes | os.PathLike[str]

class FileAccessError(DataError):
    """Bytes that were asked for cannot be read."""

    path: str
    offset: int
    wanted: int
    """Bytes asked for."""
    available: int
    """Bytes that are there from `offset` on; -1 if unknown."""

class FileVanishedError(FileAccessError): ...
class FileTruncatedError(FileAccessError): ...
class FilePermissionError(FileAccessError): ...

class CsvError(DataError):
    """A CSV row is not what was declared."""

    path: str
    row: int
    """Counted from 1, from the start of the file, without the skipped first line and empty lines."""
    offset: int
    text: str
    """The field at fault, at most 100 bytes of it."""

@final
class Gatherer:
    """Reads records by location. Safe to share between threads; keeps at most `max_open_files` files open."""

    def __init__(self, max_open_files: int = 256, num_threads: int = 1) -> None: ...
    def gather(
        self,
        paths: Sequence[PathLike],
        file_index: npt.NDArray[np.uint32],
        offsets: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64] | int,
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Bytes of n records in the order asked, duplicates included: (data uint8, bounds int64[n+1]); record i is
        data[bounds[i]:bounds[i+1]]. `file_index` points into `paths`. Raises FileAccessError, InvalidArgumentError."""
    @property
    def num_open_files(self) -> int: ...
    def close_files(self) -> None:
        """Forget all open files."""

@final
class CsvIndexer:
    """Finds the rows of a CSV file, from byte `start` on, in bounded chunks."""

    def __init__(
        self,
        path: PathLike,
        *,
        start: int = 0,
        first_row: int = 0,
        separator: str = ",",
        quote: str = '"',
        label_column: int = 0,
        float_labels: bool = False,
        timestamp_column: int = -1,
        skip_first_line: bool = False,
    ) -> None: ...
    def next(
        self, max_rows: int
    ) -> (
        tuple[
            npt.NDArray[np.int64],
            npt.NDArray[np.int64],
            npt.NDArray[np.int64] | npt.NDArray[np.float64],
            npt.NDArray[np.int64] | None,
        ]
        | None
    ):
        """Offsets, lengths, labels and, if asked for, timestamps of the next rows; None at the end. Raises CsvError, FileAccessError."""
    @property
    def position(self) -> int:
        """Bytes of the file that are behind the rows given so far, their line breaks included."""

def stat_and_read_numbers(
    paths: Sequence[PathLike], number_paths: Sequence[PathLike], floats: bool, num_threads: int = 1
) -> tuple[
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64] | npt.NDArray[np.float64],
    dict[int, tuple[str, str]],
]:
    """Sizes (bytes), modification times (ns) of `paths`, the one number that each file of `number_paths` holds, and, by position, the
    pairs that failed: (path at fault, reason)."""

def map_file(path: PathLike) -> npt.NDArray[np.uint8]:
    """A read-only map of a whole file that does not keep a file descriptor. For our own immutable files only. Raises FileAccessError."""
