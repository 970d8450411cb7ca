"""The C++ core: gathering records from files, indexing CSV, looking up keys, mapping our own files. Functions that touch files or pass over arrays
release the GIL. Array arguments must not change during a call, for example by another thread: they are checked first and read again later."""

import os
from collections.abc import Sequence
from typing import Literal, TypeVar, final

import numpy as np
import numpy.typing as npt

from modyn.errors import DataError

PathLike = str | bytes | os.PathLike[str]

class FileAccessError(DataError):
    """Requested bytes cannot be read."""

    path: str
    offset: int
    wanted: int
    """Number of requested bytes."""
    available: int
    """Number of available bytes from `offset` on; -1 if unknown."""

class FileVanishedError(FileAccessError): ...
class FileTruncatedError(FileAccessError): ...

class FileChangedError(FileAccessError):
    """The size or the time of the file has changed since it was indexed."""

class FilePermissionError(FileAccessError): ...

class CsvError(DataError):
    """A CSV row does not match its declaration."""

    path: str
    line: int
    """Counted from 1, from the start of the file."""
    row: int
    """Counted from 1, without the skipped first line and empty lines."""
    offset: int
    """The wrong field, at most 100 bytes of it."""

@final
class PathTable:
    """Maps ids to files: ids count from 0 in the order of appending. Paths are relative to `base`; absolute paths are used as they are.
    Append-only, and safe to append to while others gather.

    A file may have a stamp: its size and its time (int64 nanoseconds) when it was indexed. Gathering from a file with another stamp raises
    FileChangedError, or FileTruncatedError if the record is missing. With `may_grow`, a longer file counts as unchanged if the last 4 KiB before
    its former size have the CRC-32 `tails` (-1: not known).
    """

    def __init__(self, base: PathLike, may_grow: bool = False, unpacked: PathLike = "") -> None:
        """`unpacked`: folder of the unpacked copies, which are read instead of compressed files; empty: there are none."""
    def append(self, paths: Sequence[PathLike]) -> None: ...
    def append_packed(
        self,
        text: npt.NDArray[np.uint8],
        ends: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64] | None = None,
        mtimes_ns: npt.NDArray[np.int64] | None = None,
        tails: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Append a block of paths: path i is text[ends[i - 1]:ends[i]], the first from 0. Keeps the arrays, which may be mapped and must not
        change, without copying them. Ends are checked when their path is requested, with InvalidArgumentError."""
    def restamp(
        self,
        file_ids: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        mtimes_ns: npt.NDArray[np.int64],
        tails: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Replace the stamps of these files, and forget earlier replacements. Ids ascend. Keeps the arrays as above."""
    def stamp(self, file_id: int) -> tuple[int, int] | None:
        """Return size and time. Raises IndexError."""
    def copy(self, file_id: int) -> str | None:
        """Return the path of the unpacked copy of a compressed file, which may be missing; None: the file itself is read. Raises IndexError."""
    def tail(self, file_id: int) -> int:
        """Return the tail of the stamp; -1 if it is not known. Raises IndexError."""
    def may_be(self, file_id: int, size: int, mtime_ns: int) -> bool:
        """Return whether a file with this stamp still has the indexed content, as far as stamps show. Raises IndexError."""
    def __len__(self) -> int: ...
    def __getitem__(self, file_id: int) -> str:
        """Return the full path. Raises IndexError."""

@final
class Gatherer:
    """Reads records by location. Safe to share between threads. Keeps at most `max_open_files` files open, some of them mapped (mapped pages count
    as shared memory of the process, RssFile, but belong to the page cache and cost nothing). A kept file that was replaced or written is opened
    again when it is requested."""

    def __init__(self, max_open_files: int = 256, num_threads: int = 1, roots: Sequence[str] = ()) -> None:
        """`roots`: see `open_file`."""
    def gather(
        self,
        paths: PathTable,
        file_ids: npt.NDArray[np.uint32],
        offsets: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64] | int,
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Return the bytes of n records in the given order, including duplicates: (data uint8, bounds int64[n+1]); record i is
        data[bounds[i]:bounds[i+1]]. `file_ids` refer to `paths`. Raises FileAccessError, InvalidArgumentError."""
    @property
    def num_open_files(self) -> int: ...
    def forget_removed(self) -> int:
        """Close the kept files that were removed or replaced, which frees their disk space, and return their number. Cheap: a system call for each
        open file."""
    def close_files(self) -> None:
        """Close all open files."""

def reorder_fields(
    data: npt.NDArray[np.uint8],
    bounds: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
    separator: str,
    quote: str | None = None,
) -> tuple[int, int] | None:
    """Reorder the fields of some `rows` of CSV, as `Gatherer.gather` returns them, in place: field i becomes the former field order[i]. Returns
    None, or the first row with another number of fields than `order` and that number; the rows after it are unchanged.
    Returns None, or the first row with another number of fields than `order` has, and that number; the rows after it are as they were."""

def take(
    data: npt.NDArray[np.uint8],
    bounds: npt.NDArray[np.int64] | int,
    rows: npt.NDArray[np.int64],
    num_threads: int = 1,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Copy rows of a table in memory in the given order, including duplicates; returns the same as `Gatherer.gather`. Row r is
    data[bounds[r]:bounds[r+1]]; `bounds` may be one number of bytes for all rows (at least 1). Raises InvalidArgumentError."""

FIRST_SECOND: int
"""The first second of the year 1."""
LAST_SECOND: int
"""The last second of the year 9999."""

@final
class TimeFormat:
    """The format of times, and their reader: whole seconds since 1970, rounded down, of the years 1 to 9999. Safe to share between threads.

    `text` is empty: seconds, or ISO 8601; digits that are probably something else are refused. s, ms, us, ns: a number of these units. Otherwise
    directives of strptime. Raises: InvalidArgumentError: it is none of these.
    """

    def __init__(self, text: str = "") -> None: ...
    def of_text(self, text: str, *, typed: bool = False) -> int:
        """Return seconds. `typed`: the format of the text also has numbers, so that YYYYMMDD is a date. Raises: ValueError: it is not a time; the
        predicate of a sentence, with advice."""
    def of_integer(self, number: int) -> int:
        """Return seconds. Raises: ValueError, as above."""
    def of_float(self, number: float) -> int:
        """Return seconds. Raises: ValueError, as above."""
    def advice_for(self, text: str) -> str:
        """Name other usual formats that read `text`, with the resulting times, for messages; empty: none does."""
    def of_texts(self, bounds: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], int, str]:
        """Read n typed texts in UTF-8; text i is data[bounds[i]:bounds[i + 1]]. Returns the seconds, int64 (n,); the position of the first text
        that is not a time, or -1; and what is wrong with it. Seconds from this position on are undefined."""
    def of_integers(self, numbers: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int, str]:
        """Read whole numbers in the same way."""
    def of_floats(self, numbers: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int64], int, str]:
        """Read fractions in the same way."""

def show_time(seconds: int) -> str:
    """Format seconds since 1970, of the years 1 to 9999, as YYYY-MM-DD HH:MM:SS."""

def quoted(text: str) -> str:
    """Return `text` in quotes if it looks like a number, a time or a few words, otherwise nothing: a wrong value in a file may be a secret."""

@final
class CsvIndexer:
    """Finds the rows of a CSV file, from byte `start` on, in bounded chunks. Not safe to share between threads."""

    def __init__(
        self,
        path: PathLike,
        *,
        roots: Sequence[str] = (),
        start: int = 0,
        first_row: int = 0,
        separator: str = ",",
        quote: str = '"',
        label_column: int = 0,
        float_labels: bool = False,
        timestamp_column: int = -1,
        skip_first_line: bool = False,
        utf8: bool = True,
        max_field_lines: int = 1000,
        times: TimeFormat = ...,
        class_labels: bool = False,
    ) -> None: ...
    def next(
        self, max_rows: int
    ) -> (
        tuple[
            npt.NDArray[np.int64],
            npt.NDArray[np.int64],
            npt.NDArray[np.int64] | npt.NDArray[np.float64],
            npt.NDArray[np.int64] | None,
            list[tuple[int, str]],
            bool,
            list[bytes],
        ]
        | None
    ):
        """Return offsets, lengths, labels and, if requested, timestamps of the next rows; at most 1,000 bad rows with offset and reason;
        whether the chunk is one incomplete row that may be continued; and, with `class_labels`, the texts of the labels, which are then all 0. None
        at the end. Raises: FileAccessError; CsvError: the start of the next row cannot be found."""
    @property
    def position(self) -> int:
        """Number of bytes of the file after the rows returned so far, including their line breaks."""
    @property
    def num_columns(self) -> int:
        """Number of fields of each row: that of the first line if it is skipped, else of most of the first rows; 0: not known."""

@final
class Column:
    """A stored column of a segment, read as int64 (floats as their bits). Immutable; keeps the map under `content` alive."""

    def __init__(
        self, content: npt.NDArray[np.uint8], encoding: Literal["plain", "constant", "runs"], width: int, num_rows: int
    ) -> None:
        """`content`: all bytes of the column. plain: a value of `width` bytes for each row. constant: one value. runs, of width 8: the first rows
        of all runs, then their first values, then their steps. Raises InvalidArgumentError if the number of bytes is wrong."""
    def at(self, row: int) -> int: ...
    def take(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the values of `rows` in any order. Raises IndexError, like the other methods."""
    def slice(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the values of rows [start, stop)."""

@final
class SampleIndex:
    """Looks up keys in all segments of a dataset, in one pass. Immutable; keeps its columns alive. Keys may be in any order and repeat. A method
    returns None if a key is unknown."""

    def __init__(
        self, first_keys: npt.NDArray[np.int64], columns: tuple[tuple[Column, Column, Column, Column, Column], ...]
    ) -> None:
        """Args: one entry for each segment, in order of key; columns: file ids, offsets, lengths, labels, timestamps. Raises InvalidArgumentError."""
    def entries(
        self, keys: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64], npt.NDArray[np.int64] | int, npt.NDArray[np.int64]] | None:
        """Return file ids, offsets, lengths, labels. The lengths are one int if all samples of the dataset are equally long."""
    def labels_and_timestamps(
        self, keys: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None: ...
    def contains(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]: ...

@final
class KeySet:
    """A set of keys >= 0. Immutable; `united` shares unchanged parts with the sets that it was made of."""

    def __init__(self, keys: npt.NDArray[np.int64]) -> None:
        """`keys` ascend strictly. Raises InvalidArgumentError."""
    @staticmethod
    def parsed(content: bytes) -> KeySet:
        """Rebuild the set from the result of `serialized`. Raises InvalidArgumentError for other bytes."""
    def serialized(self) -> bytes:
        """Return the set as bytes: 2 to 6 bytes for each key in sparse parts, a bit for each possible key in dense ones."""
    def __len__(self) -> int: ...
    def united(self, other: KeySet) -> KeySet: ...
    def contains(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return for each of `keys`, which may be any numbers, whether it is in the set."""
    def between(self, first: int, end: int) -> npt.NDArray[np.int64]:
        """Return the keys in [first, end), ascending."""

def holds(values: npt.NDArray[np.int64], value: int) -> bool:
    """Return whether the value is one of `values`. Keeps the GIL: for batches, not for columns of a dataset."""

def find_runs(
    values: npt.NDArray[np.int64], max_runs: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
    """Return first positions, first values and steps of the runs in which the value changes by a constant step; None if there are more than
    max_runs. An empty array has no runs."""

@final
class KnownFiles:
    """Indexed files by id (dense from 0) and by path, with size (bytes) and time (ns). About 50 bytes and the path for each file. One writer."""

    def __init__(self) -> None: ...
    def append(
        self,
        paths: Sequence[PathLike],
        sizes: npt.NDArray[np.int64],
        mtimes_ns: npt.NDArray[np.int64],
        altered: Sequence[bool],
        tails: npt.NDArray[np.int64],
    ) -> None:
        """Append files with the next ids. `tails`: see `PathTable`."""
    def change(self, file_id: int, size: int, mtime_ns: int, altered: bool, tail: int) -> None:
        """Replace the stamp of a file. Raises: IndexError."""
    def find(self, paths: Sequence[PathLike]) -> npt.NDArray[np.int64]:
        """Return the ids of `paths`, -1 for unknown ones."""
    def path(self, file_id: int) -> str:
        """Return the path. Raises: IndexError."""
    def stamps(
        self, file_ids: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return sizes, times and tails. Raises: IndexError."""
    def packed_paths(self, first: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Return the paths of the files from id `first` on, one after the other, and the end of each."""
    def any_below(self, folder: PathLike) -> bool:
        """Return whether a file is below the folder, at any depth."""
    def __len__(self) -> int: ...

@final
class FolderWatch:
    """Changes below the folders that a `FolderScan` entered with this watch, as inotify reports them; writes through a memory map are not reported.
    The watch ends if changes could be missed: on file systems that other machines may write to, without capacity for another folder, at a file with
    hard links, when a folder disappears, or on an overflow."""

    def __init__(self) -> None: ...
    @property
    def holds(self) -> bool:
        """Return whether the watch has not ended."""
    def take(self) -> list[str] | None:
        """Return the paths that changed, appeared or disappeared since the last call, sorted; None if the watch has ended."""
    def end(self) -> None:
        """Stop watching."""

@final
class FolderScan:
    """Collects the regular files below the folder `base` whose names end with `ending`, except unchanged files of `known`. `known` must not change
    before the end. Not safe to share between threads."""

    def __init__(
        self,
        base: PathLike,
        ending: str,
        companion_ending: str,
        num_threads: int,
        known: KnownFiles,
        watch: FolderWatch | None = None,
        packed: bool = False,
    ) -> None:
        """`packed`: also collect files whose names end with `ending` followed by .gz, .zst or .bz2. `companion_ending`: replaces `ending` in the
        name of each file's companion; empty if there is none. `watch`: watches all folders that are entered.
        """
    def enter(self, path: PathLike) -> None:
        """Scan the folder `path` below `base` and all folders in it. Each folder is scanned once, even if several paths lead to it. Links are not
        followed.
        """
    def look_at(self, paths: Sequence[PathLike]) -> None:
        """Look only at these paths: files, folders (which are scanned), or missing ones."""
    def absent(self, *, of_all: bool) -> npt.NDArray[np.int64]:
        """Return the ids of known files that were not found, ascending: of all, or only of those at the paths of `look_at`."""
    def take_files(self, max_files: int) -> tuple[list[str], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the next found files, in order of modification time, then path: paths below `base`, sizes (bytes), modification times (ns), and
        the later of the file's own and its companion's time; the smallest int64 if the companion is missing. None at the end."""
    def take_links(self) -> list[str]:
        """Return the paths of symbolic links that were found since the last call, sorted."""
    def take_refused(self) -> list[tuple[str, int]]:
        """Return the paths that could not be read since the last call, with the errno."""

def stat_and_read_numbers(
    paths: Sequence[PathLike], ending_size: int, number_ending: str, floats: bool, roots: Sequence[str] = (), num_threads: int = 1
) -> tuple[
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64] | npt.NDArray[np.float64],
    dict[int, tuple[str, str]],
]:
    """Return sizes (bytes) and modification times (ns) of `paths`, the number in the label file of each, and, by position, the failures: (path at
    fault, reason). The name of a label file has `number_ending` instead of the last `ending_size` bytes, and the file must be in `roots` (see
    `open_file`)."""

def unpacked_copy(folder: PathLike, path: PathLike, size: int, tail: int) -> str:
    """Return the path of the unpacked copy of a compressed file below `folder`, under the file's own name. `path`: in the dataset's folder. `size`,
    `tail`: those at indexing."""

def open_file(path: PathLike, roots: Sequence[str]) -> int:
    """Open a file below one of the folders `roots`, whose paths hold no symbolic links, and return its descriptor; no roots: anywhere. The location
    is read from the open file, so that no link in `path` can be exchanged meanwhile. Raises FileAccessError."""

def map_file(path: PathLike) -> npt.NDArray[np.uint8]:
    """Map a whole regular file read-only, without keeping a file descriptor. Only for files that Modyn wrote. Raises FileAccessError."""

@final
class ValueCounts:
    """Counts how often each value occurs. Not safe to share between threads."""

    def __init__(self, most: int) -> None:
        """`most`: largest number of different values."""
    def add(self, values: npt.NDArray[np.int64]) -> bool:
        """Return whether all were counted: false at the first value beyond `most`."""
    def counts(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the values, ascending, and the count of each."""

@final
class StratifiedDraw:
    """Chooses a fixed number of each value from a stream. Every subset of this size has the same probability. Not safe to share between threads."""

    def __init__(
        self,
        values: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        quotas: npt.NDArray[np.int64],
        seed: tuple[int, int, int, int],
    ) -> None:
        """`counts`: number of occurrences of each of `values`; `quotas`: number of these to choose. Raises InvalidArgumentError."""
    def next(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the positions of the chosen values among the next ones, ascending, counted from 0. The choice does not depend on the chunks of the
        stream. Raises InvalidArgumentError for a value that was not counted, or occurs more often."""

def checksum(*parts: bytes | bytearray | memoryview | npt.NDArray[np.uint8]) -> int:
    """Return the XXH64 of the concatenated parts, below 2^64: detects damage at the speed of memory. Raises BufferError for a part that is not
    contiguous."""

def permutation(seed: tuple[int, int, int, int], count: int, threads: int) -> npt.NDArray[np.int64]:
    """Return a uniformly random order of 0 … count - 1, int64 (count,). A seed gives the same order on every machine, for any number of threads.
    Several times as fast as shuffling in place if `count` numbers do not fit into the cache. Raises InvalidArgumentError for a seed of zeros.
    Raises InvalidArgumentError."""

_Number = TypeVar("_Number", np.int64, np.float32)

def pick(values: npt.NDArray[_Number], rows: npt.NDArray[np.int64]) -> npt.NDArray[_Number]:
    """Return values[rows], (n,), several times as fast as NumPy if `values` do not fit into the cache. Raises InvalidArgumentError for a row that
    does not exist; negative rows do not count from the end."""

@final
class NearestGains:
    """For each of n candidates, the total decrease of the distances between rows and the chosen set if it is chosen next: gain(j) = Σ_i weight_i ·
    max(0, nearest_i - distance(i, j)), updated for all j as the set grows. At most `most_near` distances of a row are held, 8 bytes each; until no
    more candidates than that are nearer to the row than the chosen ones, its distances are requested. Not safe to share between threads."""

    def __init__(self, weights: npt.NDArray[np.float32], first: npt.NDArray[np.float64], most_near: int) -> None:
        """Args: weights: (n,). first: (n,), the gains of the first choice, which depend on the cost of an empty set."""
    @property
    def gains(self) -> npt.NDArray[np.float64]:
        """The gains, (n,), a view."""
    @property
    def nearest(self) -> npt.NDArray[np.float32]:
        """The distance of each row to its nearest chosen candidate, (n,), a view; infinite before the first choice."""
    def choose(self, distances: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """Choose the candidate with these distances, (n,), to all rows. Returns: rows, ascending, for which `update_rows` must be called."""
    def update_rows(
        self, rows: npt.NDArray[np.int64], distances: npt.NDArray[np.float32], nearest: npt.NDArray[np.float32]
    ) -> None:
        """Args: rows: (m,). distances: (m, n), of these rows to all candidates. nearest: (m,), to the nearest chosen candidate. Raises
        InvalidArgumentError for a row that does not exist."""

def hash_strings(bounds: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Hash n strings, uint64 (n,), with the same result in every version: string i is data[bounds[i]:bounds[i + 1]]. Raises: InvalidArgumentError."""

def encode_strings(
    bounds: npt.NDArray[np.int32], data: npt.NDArray[np.uint8], valid: npt.NDArray[np.uint8] | None, first_bit: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """Return the distinct ones of n strings, numbered in the order of first appearance.

    Args: bounds, data: see `hash_strings`. valid: a bit for each string from `first_bit` on, the lowest of a byte first; None: none is missing.
    Returns: the number of each string, int64 (n,), -1 if it is missing; the first row of each distinct string, int64 (m,); their hashes, uint64
    (m,).
    Raises: InvalidArgumentError.
    """
