"""Trigger sets: check which set may come next, and write and read the file of a set. The file has columns, is written atomically, never changes, and
is mapped for reading.

The columns are the keys as int64 and the weights as float32. If the set consists of whole ranges of the stream, the file instead has a column
`ranges`, int64 (n, 2), with positions in the run's log; the samples have weight 1. If the keys of these ranges form only a few arithmetic
progressions, the header contains the progressions, and the log is not read. Keys form few progressions if files were indexed in the order of their
times. Partition p holds positions [p·size, (p+1)·size) of the set.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from modyn._core import find_runs
from modyn.atomic_write import sync
from modyn.columnar import ColumnFile, FileKind, column_writer
from modyn.errors import ConflictError, InvalidArgumentError, ModynError, UnavailableError
from modyn.records import Int64Array, KeysAndWeights, RunId, TriggerSetInfo
from modyn.selector.window import BLOCK, SampleReader, Selection, SelectionWindow

_KIND = FileKind(b"MODYNSET", 4, "trigger set", "restore it from a backup, or delete the run and start it again")
_VERIFYING = tuple(threading.Lock() for _ in range(16))
"""Locks by hash of the path. One thread verifies a file while it holds the file's lock. Other threads that open the file at the same time wait for
the lock, and then find the result in the cache of `_verify`.
"""
_MOST_PROGRESSIONS = 256
"""Largest number of key progressions in a header."""

KeyProgression = tuple[int, int, int]
"""A progression of keys: the position of the first key in the set, the first key, and the step from key to key."""


@dataclass(frozen=True, slots=True)
class TriggerSetHeader:
    """The header of the file. keys_sha256: SHA-256 of the keys as little-endian int64, in hexadecimal.

    key_runs: all keys as progressions; empty if the keys are in the columns or in the log.
    """

    num_keys: int
    partition_size: int
    keys_sha256: str
    key_runs: Sequence[KeyProgression] = ()


def check_next(run_id: RunId, held: int, next_id: int, covered: int, trigger_id: int, num_samples: int) -> None:
    """Check that `trigger_id` can be the run's next trigger, over `num_samples` samples.

    Args: held: number of the run's samples that the selector holds. next_id: number of the next trigger. covered: number of samples that the previous
    trigger covers. Raises: ConflictError: the trigger cannot come now. InvalidArgumentError: a number is negative.
    """
    if trigger_id < 0 or num_samples < 0:
        raise InvalidArgumentError(f"trigger {trigger_id} over {num_samples} samples: neither may be negative")
    if trigger_id != next_id:
        raise ConflictError(f"the next trigger of run '{run_id}' is {next_id}, not {trigger_id}; triggers come in order")
    if num_samples > held:
        raise ConflictError(
            f"trigger {trigger_id} of run '{run_id}' asks for {num_samples} samples, but {held} are held; inform the rest first"
        )
    if num_samples < covered:
        raise ConflictError(
            f"trigger {trigger_id} of run '{run_id}' asks for {num_samples} samples, fewer than the {covered} of the one before"
        )


def check_checksum(found: TriggerSetInfo, keys_checksum: str) -> None:
    """Raise ConflictError unless the trigger set has this checksum. Args: keys_checksum: checksum from `TriggerSetInfo`; empty accepts any."""
    if keys_checksum and keys_checksum != found.keys_checksum:
        raise ConflictError(
            f"trigger {found.trigger_id} of run '{found.run_id}' has other keys than when reading began: the run was deleted and started "
            "again; start its reader again, too"
        )


def partition_bounds(num_keys: int, partition_size: int, partition: int) -> tuple[int, int]:
    """Return the positions [start, stop) of a partition. Raises InvalidArgumentError if the partition does not exist.

    Args: partition_size: number of keys of each partition except the last.

    >>> partition_bounds(10, 4, 2)
    (8, 10)
    """
    num_partitions = -(-num_keys // partition_size)
    if not 0 <= partition < num_partitions:
        raise InvalidArgumentError(
            f"there is no partition {partition}: the trigger set has {num_partitions} of {partition_size} keys"
        )
    first = partition * partition_size
    return first, min(first + partition_size, num_keys)


def write_trigger_set(path: Path, partition_size: int, selection: Selection) -> TriggerSetHeader:
    """Write the selection to `path`, chunk by chunk. Afterwards the file is complete and on disk, or `path` is unchanged.

    Args: partition_size: number of keys of each partition except the last. selection: its chunks are consumed. Raises: UnavailableError: the disk
    fails. ModynError: the policy yields another number of keys than `num_keys`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The sync is needed even if the folder exists, because an interrupted attempt may have created it without a sync.
        sync(path.parent.parent)
    except OSError as error:
        raise UnavailableError(
            f"cannot write the trigger set {path}: {error.strerror}; free or repair the disk and try again"
        ) from error
    promised, ranges, done, digest = selection.num_keys, selection.ranges, 0, hashlib.sha256()
    columns: dict[str, tuple[str, int | tuple[int, ...]]] = {"keys": ("<i8", promised), "weights": ("<f4", promised)}
    if ranges is not None:
        columns = {"ranges": ("<i8", (len(ranges), 2))}
        if promised != (covered := sum(end - start for start, end in ranges)):
            raise _broken_promise(promised, f"ranges of {covered}")
    progressions: list[KeyProgression] | None = None if ranges is None else []
    with column_writer(path, _KIND, columns) as writer:
        for chunk in selection.chunks:
            keys = np.ascontiguousarray(chunk.keys, "<i8")
            progressions = _with_progressions(progressions, done, keys)
            done += len(keys)
            if len(keys) != len(chunk.weights) or done > promised:
                raise _broken_promise(promised, f"{done} keys and {done - len(keys) + len(chunk.weights)} weights or more")
            if ranges is None:
                writer.append("keys", keys)
                writer.append("weights", chunk.weights)
            digest.update(keys.data)
        if done != promised:
            raise _broken_promise(promised, f"{done} keys")
        if ranges is not None:
            writer.append("ranges", np.array(ranges, np.int64).reshape(-1, 2))
        header = TriggerSetHeader(done, partition_size, digest.hexdigest(), progressions or ())
        writer.meta = asdict(header)
    return header


def _broken_promise(promised: int, found: str) -> ModynError:
    return ModynError(f"the selection policy promised {promised} keys and yielded {found}; correct its num_keys")


def _with_progressions(progressions: list[KeyProgression] | None, start: int, keys: Int64Array) -> list[KeyProgression] | None:
    """Extend the `progressions` of the keys before position `start` with `keys`; None if there are too many progressions.

    >>> progressions = _with_progressions(_with_progressions([], 0, np.arange(3)), 3, np.arange(3, 6))
    >>> _with_progressions(progressions, 6, np.array([9, 8, 5]))
    [(0, 0, 1), (6, 9, -1), (8, 5, 0)]
    """
    if progressions is None or not len(keys):
        return progressions
    if (found := find_runs(keys, _MOST_PROGRESSIONS - len(progressions))) is None:
        return None
    new = [(start + int(at), int(key), int(step)) for at, key, step in zip(*found, strict=True)]
    if progressions:
        at, key, step = progressions[-1]
        # The new keys continue the last progression if they begin with its next key, and have its step.
        if new[0][1:] == (key + (start - at) * step, step):
            del new[0]
    return progressions + new


class TriggerSet:
    """An open trigger set. `reader` reads the log of its run.

    Checksums are verified once per file and process. If the set is stored as ranges of the log, each read verifies the checksums of the log. Raises:
    NotFoundError: the file does not exist. CorruptStateError: header, size or checksums are wrong.
    """

    def __init__(self, path: Path, reader: SampleReader) -> None:
        self._file, self._reader = ColumnFile.open(path, _KIND), reader
        with _VERIFYING[hash(path) % len(_VERIFYING)]:
            # A replaced file has another inode, time or digest, and is verified again.
            status = path.stat()
            _verify(path, status.st_ino, status.st_mtime_ns, self._file.written.digest)
        self.header = TriggerSetHeader(**self._file.meta)

    def partition(self, partition: int, chunk_size: int) -> Iterator[KeysAndWeights]:
        """Return a partition in chunks of at most `chunk_size` keys. Raises InvalidArgumentError: see `partition_bounds`."""
        start, stop = partition_bounds(self.header.num_keys, self.header.partition_size, partition)
        bounds = pairwise((*range(start, stop, chunk_size), stop))
        if self.header.key_runs:
            return (KeysAndWeights.unweighted(self._from_progressions(first, last)) for first, last in bounds)
        if "ranges" in self._file:
            return (KeysAndWeights.unweighted(self._from_log(first, last)) for first, last in bounds)
        keys, weights = self._file.column("keys"), self._file.column("weights")
        return (KeysAndWeights(keys[first:last], weights[first:last]) for first, last in bounds)

    def chunks(self, chunk_size: int) -> Iterator[KeysAndWeights]:
        """Return the whole set in chunks of at most `chunk_size` keys."""
        partitions = range(-(-self.header.num_keys // self.header.partition_size))
        return (chunk for partition in partitions for chunk in self.partition(partition, chunk_size))

    def _from_progressions(self, first: int, last: int) -> Int64Array:
        """Return keys [first, last) of the set."""
        header, found = self.header, []
        ends = [start for start, _, _ in header.key_runs[1:]] + [header.num_keys]
        for (start, key, step), end in zip(header.key_runs, ends, strict=True):
            count = min(last, end) - (begin := max(first, start))
            if count > 0:
                found.append(_progression(key + (begin - start) * step, step, count))
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _from_log(self, first: int, last: int) -> Int64Array:
        """Return keys [first, last) of the set, at least one."""
        ranges: Int64Array = self._file.column("ranges")
        ends = np.cumsum(ranges[:, 1] - ranges[:, 0])
        chosen = slice(np.searchsorted(ends, first, "right"), np.searchsorted(ends, last) + 1)
        # The position of sample i of the set is i plus the number of earlier samples of the stream that are not in the set. This number is the same
        # for all samples of a range.
        shifts = ranges[chosen, 1] - ends[chosen]
        # This is the usual case: without deleted samples, a set has one range.
        if len(shifts) == 1:
            return self._reader.read_keys(first + int(shifts[0]), last + int(shifts[0]))
        numbers = np.arange(first, last)
        positions = numbers + shifts[np.searchsorted(ends[chosen], numbers, "right")]
        window = SelectionWindow(self._reader, 0, int(positions[-1]) + 1, max(len(positions), BLOCK))
        return np.concatenate(list(window.keys_at(iter([positions]))))


def _progression(key: int, step: int, count: int) -> Int64Array:
    return np.arange(key, key + count * step, step) if step else np.full(count, key)


# In the cache, the arguments with a leading underscore distinguish versions of the file. An error is not cached.
@lru_cache(maxsize=4096)
def _verify(path: Path, _inode: int, _mtime_ns: int, _digest: str) -> None:
    ColumnFile.open(path, _KIND).verify()
