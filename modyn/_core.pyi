"""The C++ core: gathering records from files, indexing CSV, looking keys up, mapping our own files. What touches files or passes over arrays
releases the GIL meanwhile. Arrays that are handed in must not change during the call, as another thread could make them: they are checked
first and read again then."""

import os
from collections.abc import Sequence
from typing import Literal, TypeVar, final

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

class FileChangedError(FileAccessError):
    """The file is not as it was when it was indexed, by its size and its time."""

class FilePermissionError(FileAccessError): ...

class CsvError(DataError):
    """A CSV row is not what was declared."""

    path: str
    line: int
    """Counted from 1, from the start of the file."""
    row: int
    """Counted likewise, without the skipped first line and empty lines."""
    offset: int
    """The field at fault, at most 100 bytes of it."""

@final
class PathTable:
    """Which file an id means: ids count from 0 in the order of appending. Paths are relative to `base`; an absolute one stands for itself.
    Append-only, and safe to append to while others gather.

    A file may have a stamp: its size and its time (int64 nanoseconds) when it was indexed. Gathering from a file with another stamp
    raises FileChangedError, or FileTruncatedError if the record is not there; with `may_grow`, a longer file is no changed one if the
    last 4 KiB before its former size have the CRC-32 `tails` (-1: not known)."""

    def __init__(self, base: PathLike, may_grow: bool = False, unpacked: PathLike = "") -> None:
        """`unpacked`: folder of the unpacked copies of compressed files, which are gathered from in their place; empty: there are none."""
    def append(self, paths: Sequence[PathLike]) -> None: ...
    def append_packed(
        self,
        text: npt.NDArray[np.uint8],
        ends: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64] | None = None,
        mtimes_ns: npt.NDArray[np.int64] | None = None,
        tails: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Path i of the block is text[ends[i - 1]:ends[i]], the first from 0. Keeps the arrays, which may be mapped, and copies nothing:
        they must not change. Ends are looked at when their path is asked for: InvalidArgumentError then if they make no sense."""
    def restamp(
        self,
        file_ids: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        mtimes_ns: npt.NDArray[np.int64],
        tails: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Stamps in place of those that these files came with, instead of those of an earlier call. Ids ascend. Keeps the arrays as above."""
    def stamp(self, file_id: int) -> tuple[int, int] | None:
        """Size and time. Raises IndexError."""
    def copy(self, file_id: int) -> str | None:
        """The unpacked copy of a compressed file, which may not be there; None: the file is read itself. Raises IndexError."""
    def tail(self, file_id: int) -> int:
        """What came with the stamp as its tail; -1 if it is not known. Raises IndexError."""
    def may_be(self, file_id: int, size: int, mtime_ns: int) -> bool:
        """Whether a file that is like this now still has what was indexed, as far as stamps show. Raises IndexError."""
    def __len__(self) -> int: ...
    def __getitem__(self, file_id: int) -> str:
        """The whole path. Raises IndexError."""

@final
class Gatherer:
    """Reads records by location. Safe to share between threads; keeps at most `max_open_files` files open, some of them mapped (mapped
    pages count as the process's shared memory, RssFile; they are the page cache's own and cost nothing). A kept file that was replaced or
    written is opened anew when it is asked for again."""

    def __init__(self, max_open_files: int = 256, num_threads: int = 1, roots: Sequence[str] = ()) -> None:
        """`roots`: as for `open_file`."""
    def gather(
        self,
        paths: PathTable,
        file_ids: npt.NDArray[np.uint32],
        offsets: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64] | int,
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Bytes of n records in the order asked, duplicates included: (data uint8, bounds int64[n+1]); record i is
        data[bounds[i]:bounds[i+1]]. `file_ids` point into `paths`. Raises FileAccessError, InvalidArgumentError."""
    @property
    def num_open_files(self) -> int: ...
    def forget_removed(self) -> int:
        """Close the kept files that were removed or replaced, whose space on the disk is not free before; how many they were. Cheap: a
        system call for each open file."""
    def close_files(self) -> None:
        """Forget all open files."""

def reorder_fields(
    data: npt.NDArray[np.uint8],
    bounds: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
    separator: str,
    quote: str | None = None,
) -> tuple[int, int] | None:
    """Put the fields of some `rows` of CSV, as `Gatherer.gather` returns them, in another order, in place: field i becomes what was field order[i].
    Returns None, or the first row with another number of fields than `order` has, and that number; the rows after it are as they were."""

def take(
    data: npt.NDArray[np.uint8],
    bounds: npt.NDArray[np.int64] | int,
    rows: npt.NDArray[np.int64],
    num_threads: int = 1,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Rows of a table in memory, in the order asked, duplicates included, as from `Gatherer.gather`. Row r is data[bounds[r]:bounds[r+1]];
    `bounds` may be one number of bytes for all rows (at least 1). Raises InvalidArgumentError."""

FIRST_SECOND: int
"""The first second of the year 1."""
LAST_SECOND: int
"""The last second of the year 9999."""

@final
class TimeFormat:
    """How times are written, and the reader of them: whole seconds since 1970, rounded down, of the years 1 to 9999. Safe to share between threads.

    `text` is empty: seconds, or ISO 8601; digits that are most likely something else are refused. s, ms, us, ns: the number of these. Else directives
    of strptime. Raises: InvalidArgumentError: it is none of these."""

    def __init__(self, text: str = "") -> None: ...
    def of_text(self, text: str, *, typed: bool = False) -> int:
        """Seconds. `typed`: the text is of a format that has numbers too, so that YYYYMMDD is a date. Raises: ValueError: it is no time; predicate of
        a sentence, with what to write instead."""
    def of_integer(self, number: int) -> int:
        """Seconds. Raises: ValueError, as above."""
    def of_float(self, number: float) -> int:
        """Seconds. Raises: ValueError, as above."""
    def advice_for(self, text: str) -> str:
        """Say which other usual formats read `text`, and as what time, for messages; empty: none does."""
    def of_texts(self, bounds: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], int, str]:
        """Read n typed texts in UTF-8; text i is data[bounds[i]:bounds[i + 1]]. Returns the seconds, int64 (n,); the position of the first text that
        is not a time, -1 if there is none; and what is wrong with it. Seconds from this position on have no meaning."""
    def of_integers(self, numbers: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int, str]:
        """The same of whole numbers."""
    def of_floats(self, numbers: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int64], int, str]:
        """The same of fractions."""

def show_time(seconds: int) -> str:
    """YYYY-MM-DD HH:MM:SS of seconds since 1970, of the years 1 to 9999."""

def quoted(text: str) -> str:
    """`text` in quotes if it looks like a number, a time or a few words, else nothing: what stands in a file by mistake may be a secret."""

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
        ]
        | None
    ):
        """Offsets, lengths, labels and, if asked for, timestamps of the next rows; the bad ones, at most 1,000: offset and reason; and whether
        the chunk is one row that does not end yet, so that it may be continued. None at the end. Raises: FileAccessError; CsvError: it cannot be
        known where the next row begins."""
    @property
    def position(self) -> int:
        """Bytes of the file that are behind the rows given so far, their line breaks included."""
    @property
    def num_columns(self) -> int:
        """Fields that each row must have: those of the first line if it is skipped, else of most of the first rows; 0: not known."""

@final
class Column:
    """A column of a segment as it is stored, read as int64 (floats as their bits). Immutable; keeps the map under `content` alive."""

    def __init__(
        self, content: npt.NDArray[np.uint8], encoding: Literal["plain", "constant", "runs"], width: int, num_rows: int
    ) -> None:
        """`content`: all its bytes. plain: a value of `width` bytes for each row. constant: one value. runs, of width 8: the first rows of
        all runs, then their first values, then by how much the value rises from row to row. Raises InvalidArgumentError if the number of
        bytes is wrong."""
    def at(self, row: int) -> int: ...
    def take(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Values of `rows`, any order. Raises IndexError, as the others do."""
    def slice(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Values of rows [start, stop)."""

@final
class SampleIndex:
    """Looks keys up in all segments of a dataset, in one pass. Immutable; keeps its columns alive. The answers of n keys, which may be in
    any order and repeat, are None if a key is unknown."""

    def __init__(
        self, first_keys: npt.NDArray[np.int64], columns: tuple[tuple[Column, Column, Column, Column, Column], ...]
    ) -> None:
        """One entry a segment, in order of key; columns: file ids, offsets, lengths, labels, timestamps. Raises InvalidArgumentError."""
    def entries(
        self, keys: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64], npt.NDArray[np.int64] | int, npt.NDArray[np.int64]] | None:
        """File ids, offsets, lengths, labels. The lengths are one int if all samples of the dataset are equally long."""
    def labels_and_timestamps(
        self, keys: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None: ...
    def contains(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]: ...

@final
class KeySet:
    """A set of keys >= 0. Immutable; `united` shares what does not change with the sets that it was made of."""

    def __init__(self, keys: npt.NDArray[np.int64]) -> None:
        """`keys` ascend strictly. Raises InvalidArgumentError."""
    @staticmethod
    def parsed(content: bytes) -> KeySet:
        """The set that `serialized` was called on. Raises InvalidArgumentError for other bytes."""
    def serialized(self) -> bytes:
        """2 to 6 bytes a key where keys are few, a bit for each possible key where they are many."""
    def __len__(self) -> int: ...
    def united(self, other: KeySet) -> KeySet: ...
    def contains(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """For each of `keys`, any numbers, whether it is in the set."""
    def between(self, first: int, end: int) -> npt.NDArray[np.int64]:
        """Keys in [first, end), ascending."""

def find_runs(
    values: npt.NDArray[np.int64], max_runs: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
    """First positions, first values and steps of runs in which the value changes by the same step; None if there are more than max_runs.
    Nothing has no runs."""

@final
class KnownFiles:
    """Indexed files by id (dense from 0) and by path, with size (bytes) and time (ns), about 50 bytes each and the path. One writer."""

    def __init__(self) -> None: ...
    def append(
        self,
        paths: Sequence[PathLike],
        sizes: npt.NDArray[np.int64],
        mtimes_ns: npt.NDArray[np.int64],
        altered: Sequence[bool],
        tails: npt.NDArray[np.int64],
    ) -> None:
        """The next ids are those of these files. `tails`: as in `PathTable`."""
    def change(self, file_id: int, size: int, mtime_ns: int, altered: bool, tail: int) -> None:
        """Replace what is known of a file. Raises: IndexError."""
    def find(self, paths: Sequence[PathLike]) -> npt.NDArray[np.int64]:
        """Ids of `paths`, -1 where there is none."""
    def path(self, file_id: int) -> str:
        """Raises: IndexError."""
    def stamps(
        self, file_ids: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Sizes, times and tails. Raises: IndexError."""
    def packed_paths(self, first: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """The paths of the files from id `first` on, one behind the other, and where each ends."""
    def any_below(self, folder: PathLike) -> bool:
        """Whether a file lies below the folder, at any depth."""
    def __len__(self) -> int: ...

@final
class FolderWatch:
    """What changes below the folders that a `FolderScan` entered with it, as inotify reports it: writes by a memory map are not. Ends where it
    cannot know: on file systems that other machines may write to, without room for one more folder, at a file with hard links, when a folder
    goes, or on an overflow."""

    def __init__(self) -> None: ...
    @property
    def holds(self) -> bool:
        """It has not ended."""
    def take(self) -> list[str] | None:
        """Paths that changed, appeared or went since the last call, sorted; None if the watch has ended."""
    def end(self) -> None:
        """Watch nothing any more."""

@final
class FolderScan:
    """Collects the regular files below the folder `base` whose names end with `ending`, but for those of `known` that are as they were indexed.
    `known` must not change before the end. Not safe to share between threads."""

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
        """`packed`: also files whose names end with `ending` and then with .gz, .zst or .bz2.

        `companion_ending`: of the name of the file beside each of the files, in place of `ending`; empty if there is none. `watch`: of all
        folders that are entered."""
    def enter(self, path: PathLike) -> None:
        """Look at the folder `path` below `base` and all in it, once, whatever path leads to it. Links are not followed."""
    def look_at(self, paths: Sequence[PathLike]) -> None:
        """Look at these paths alone: files, folders, which are entered, or nothing."""
    def absent(self, *, of_all: bool) -> npt.NDArray[np.int64]:
        """Ids of known files that were not met, ascending: of all, or only of those that `look_at` was asked for."""
    def take_files(self, max_files: int) -> tuple[list[str], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The next files found, in order of modification time, then path: paths below `base`, sizes (bytes), modification times (ns), and the
        later of the file's own and its companion's; the least int64 where that is missing. None at the end."""
    def take_links(self) -> list[str]:
        """Paths of symbolic links that were met since the last call, sorted."""
    def take_refused(self) -> list[tuple[str, int]]:
        """Paths that could not be looked at since the last call, with the errno."""

def stat_and_read_numbers(
    paths: Sequence[PathLike], ending_size: int, number_ending: str, floats: bool, roots: Sequence[str] = (), num_threads: int = 1
) -> tuple[
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64] | npt.NDArray[np.float64],
    dict[int, tuple[str, str]],
]:
    """Sizes (bytes), modification times (ns) of `paths`, the one number that the file beside each holds, whose name has `number_ending` in
    place of the last `ending_size` bytes and which lies in `roots` (see `open_file`), and, by position, those that failed: (path at fault,
    reason)."""

def unpacked_copy(folder: PathLike, path: PathLike, size: int, tail: int) -> str:
    """Where the unpacked copy of a compressed file lies below `folder`, under the file's own name. `path`: in the dataset's folder. `size`, `tail`:
    with which it was indexed."""

def open_file(path: PathLike, roots: Sequence[str]) -> int:
    """A descriptor of a file that lies below one of the folders `roots`, which hold no symbolic links in their paths; none: anywhere. It is the
    opened file that is asked where it lies, so that no link in `path` can be exchanged in between. Raises FileAccessError."""

def map_file(path: PathLike) -> npt.NDArray[np.uint8]:
    """A read-only map of a whole regular file, without keeping a file descriptor. For files that Modyn wrote only. Raises FileAccessError."""

@final
class ValueCounts:
    """Counts how often each value comes. Not safe to share between threads."""

    def __init__(self, most: int) -> None:
        """`most`: different values at most."""
    def add(self, values: npt.NDArray[np.int64]) -> bool:
        """Whether all were counted: false at the first value that is one too many."""
    def counts(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The values, ascending, and how often each came."""

@final
class StratifiedDraw:
    """Chooses from a stream of values a fixed number of each, every subset of that size equally likely. Not safe to share between threads."""

    def __init__(
        self,
        values: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int64],
        quotas: npt.NDArray[np.int64],
        seed: tuple[int, int, int, int],
    ) -> None:
        """`counts`: how often each of `values` will come; `quotas`: how many of these to choose. Raises InvalidArgumentError."""
    def next(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where the next values are that are chosen, ascending, the first at 0: the same samples in whatever chunks the stream comes. Raises
        InvalidArgumentError for a value that comes more often than it was counted."""

def checksum(*parts: bytes | bytearray | memoryview | npt.NDArray[np.uint8]) -> int:
    """XXH64 of the parts, one behind the other, below 2^64: against damage, at the speed of memory. Raises BufferError for a part that does not lie
    in order."""

def permutation(seed: tuple[int, int, int, int], count: int, threads: int) -> npt.NDArray[np.int64]:
    """A random order of 0 … count - 1, int64 (count,), each equally likely; a seed gives the same one everywhere, on any number of threads. Several
    times as fast as shuffling in place where `count` numbers do not fit into the cache. Raises InvalidArgumentError for a seed of zeros."""

_Number = TypeVar("_Number", np.int64, np.float32)

def pick(values: npt.NDArray[_Number], rows: npt.NDArray[np.int64]) -> npt.NDArray[_Number]:
    """values[rows], (n,), several times as fast as NumPy where `values` do not fit into the cache. Raises InvalidArgumentError for a row that
    does not exist; rows do not count from the end."""

@final
class NearestGains:
    """How much nearer n rows come to a chosen set with one more of them: gain(j) = Σ_i weight_i · max(0, nearest_i - distance(i, j)), kept for
    all j while the set grows. At most `most_near` distances of a row are held, 8 bytes each; until so few candidates are nearer to it than
    what is chosen, its distances are asked for. Not safe to share between threads."""

    def __init__(self, weights: npt.NDArray[np.float32], first: npt.NDArray[np.float64], most_near: int) -> None:
        """Args: weights: (n,). first: (n,), the gains of the first choice, which depend on what nothing chosen costs."""
    @property
    def gains(self) -> npt.NDArray[np.float64]:
        """(n,), a view."""
    @property
    def nearest(self) -> npt.NDArray[np.float32]:
        """(n,), a view: distance to the nearest chosen one, infinite before the first choice."""
    def choose(self, distances: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """Choose the candidate that has these distances, (n,), to all rows. Returns: rows that `update_rows` must be called for, ascending."""
    def update_rows(
        self, rows: npt.NDArray[np.int64], distances: npt.NDArray[np.float32], nearest: npt.NDArray[np.float32]
    ) -> None:
        """Args: rows: (m,). distances: (m, n), of these rows to all candidates. nearest: (m,), to what was chosen. Raises
        InvalidArgumentError for a row that does not exist."""

def hash_strings(bounds: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Hashes of n strings, uint64 (n,), the same in every version: string i is data[bounds[i]:bounds[i + 1]]. Raises: InvalidArgumentError."""

def encode_strings(
    bounds: npt.NDArray[np.int32], data: npt.NDArray[np.uint8], valid: npt.NDArray[np.uint8] | None, first_bit: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """The distinct ones of n strings, numbered in the order in which they come first.

    Args: bounds, data: as of `hash_strings`. valid: a bit for each string from `first_bit` on, the lowest of a byte first; None: none is missing.
    Returns: the number of each, int64 (n,), -1 where it is missing; where each distinct one comes first, int64 (m,); their hashes, uint64 (m,).
    Raises: InvalidArgumentError.
    """
