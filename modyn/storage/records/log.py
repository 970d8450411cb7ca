"""The log of a dataset of records: append-only files, of which each record counts exactly once by its idempotency key.

An append is answered when its records are on the disk. Calls that come while the disk is busy share the next write and its `fdatasync`. The
n-th record of the log is the sample with the key n, so that its key is known before it is a sample.

After a crash the log is what its files say (`formats/record_log.py`): a batch that is not whole was acknowledged to none, and what follows
it begins a new file. A whole batch counts although it may not have been acknowledged: its client asks again, and gets "duplicate". Nothing is
ever cut off or overwritten, so that readers of what is indexed are not disturbed, and nothing is lost that could still be of use.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from modyn.atomic_write import TEMPORARY_SUFFIX, make_folder, sync, write_atomically
from modyn.columnar import write_at
from modyn.errors import CorruptStateError, ModynError, UnavailableError
from modyn.records import Int64Array
from modyn.rpc.logs import get_logger
from modyn.storage.formats.record_log import (
    ENTRY,
    HEAD_BYTES,
    KIND,
    RECORD_FILE,
    Entries,
    RecordBatch,
    encode_batch,
    encode_head,
    encode_label,
    read_batches,
    read_head,
    refuse_later_batch,
)
from modyn.storage.model.records import AppendedRecord, NewRecord
from modyn.storage.records.key_index import KeyIndex, digest_bytes


@dataclass(frozen=True, slots=True)
class RecordLogLimits:
    """file_bytes: a file that has so many is the last one no longer. write_bytes: about the most that is written at once. held_keys: so many
    idempotency keys in memory, some 15 MB of them, become a file."""

    file_bytes: int = 1 << 28
    write_bytes: int = 1 << 26
    held_keys: int = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class PreparedRecords:
    """Records of one call: n entries, of dtype ENTRY, and n payloads."""

    entries: Entries
    payloads: Sequence[bytes]

    @staticmethod
    def of(records: Sequence[NewRecord], *, float_labels: bool, now: int) -> PreparedRecords:
        """Compute the digests of records. Args: now: seconds since 1970, of those that bring no time."""
        entries = np.zeros(len(records), ENTRY)
        keys, contents, labels = [], [], []
        for record in records:
            label = encode_label(record.label, float_labels=float_labels)
            # Without the time of arrival, which is another one when a call is repeated.
            given = b"" if record.timestamp is None else struct.pack("<q", record.timestamp)
            keys.append(hashlib.blake2b(record.key.encode(), digest_size=16).digest())
            head = bytes([len(given)]) + given + label
            contents.append(hashlib.blake2b(record.payload, digest_size=8, key=head).digest())
            labels.append(label)
        entries["digest"] = np.frombuffer(b"".join(keys), "<u8").reshape(-1, 2)
        entries["content"] = np.frombuffer(b"".join(contents), "<u8")
        entries["label"] = np.frombuffer(b"".join(labels), "<i8")
        entries["timestamp"] = [now if record.timestamp is None else record.timestamp for record in records]
        payloads = [record.payload for record in records]
        entries["length"] = [len(payload) for payload in payloads]
        return PreparedRecords(entries, payloads)


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of the log. first_key: of its first record."""

    path: Path
    first_key: int


@dataclass(frozen=True, slots=True)
class DurableLog:
    """What of the log is on the disk. end: bytes of the last file that count. next_key: the number of records."""

    files: tuple[LogFile, ...]
    end: int
    next_key: int

    def batches(self, number: int, start: int, next_key: int) -> Iterator[RecordBatch]:
        """Yield the batches of file `number` from byte `start` on, where the record `next_key` begins.

        Raises: CorruptStateError: one is damaged. UnavailableError: it cannot be read.
        """
        file, is_last = self.files[number], number + 1 == len(self.files)
        end_key = self.next_key if is_last else self.files[number + 1].first_key
        try:
            with open(file.path, "rb") as opened:
                size = self.end if is_last else os.fstat(opened.fileno()).st_size
                batches = read_batches(opened, start, size)
                # What is behind the last of its records was not acknowledged; the next file has taken its place.
                while next_key < end_key:
                    batch = next(batches, None)
                    if batch is None or batch.first_key != next_key or batch.end_key > end_key:
                        raise KIND.corrupt(file.path, f"the batch at byte {start} is not what was written")
                    next_key, start = batch.end_key, batch.end
                    yield batch
        except OSError as error:
            raise UnavailableError(
                f"cannot read {file.path}: {error.strerror or error}; make it readable for the service"
            ) from error


class RecordLog:
    """A log that is open for appending. Any number of threads; one process."""

    def __init__(self, folder: Path, quarantine: Path, num_indexed: int, limits: RecordLogLimits = RecordLogLimits()) -> None:
        """Open the log in `folder`, which is made if it is missing, as a crash may have left it.

        Args: quarantine: where damaged files of idempotency keys go. num_indexed: records that are samples already.
        Raises: CorruptStateError: records are damaged or missing. UnavailableError: the disk cannot be used.
        """
        self._folder, self._limits = folder, limits
        self._turn = threading.Condition()
        """Protects the next three fields, and wakes the calls that wait: their records were written, or one of them is to write next."""
        self._waiting: list[_Call] = []
        self._is_writing = False
        self._closed: ModynError | None = None
        # The fields below are changed by the one call that is writing.
        self._descriptor: int | None = None
        """Of the last file; None: the next append begins another one."""
        self._unwritten_bytes = 0
        """Of records whose keys are in memory only, about: a restart reads so many."""
        try:
            make_folder(folder)
            for path in folder.glob(f"*{RECORD_FILE}.*{TEMPORARY_SUFFIX}"):
                path.unlink(missing_ok=True)
            self._keys = KeyIndex.open(folder, quarantine)
            self.durable = self._recovered(num_indexed)
            """Replaced as a whole."""
        except OSError as error:
            raise _unavailable(folder, error) from error

    # Appending

    def append(self, records: PreparedRecords) -> list[AppendedRecord]:
        """Append those of the records whose idempotency key is not known; an answer for each, in order. What is answered is durable.

        Raises: UnavailableError: the disk cannot be written to, or the log is closed. It is not known whether the records were appended: the call
        may be repeated. CorruptStateError.
        """
        if not len(records.entries):
            return []
        call = _Call(records)
        with self._turn:
            self._waiting.append(call)
            while self._is_writing and call.outcome is None:
                self._turn.wait()
            if call.outcome is None:
                self._is_writing = True
        while call.outcome is None:
            with self._turn:
                calls = self._take()
            outcomes = self._written(calls)
            with self._turn:
                for taken, outcome in zip(calls, outcomes, strict=True):
                    taken.outcome = outcome
                # Once its own records are written, a call hands the turn to one that waits: none serves the others for ever.
                self._is_writing = call.outcome is None
                self._turn.notify_all()
        if isinstance(call.outcome, BaseException):
            raise call.outcome
        return call.outcome

    def find(self, keys: Sequence[str]) -> Int64Array:
        """The samples that records with these idempotency keys became or become, int64 (n,); -1: there is no such record."""
        digests = b"".join(hashlib.blake2b(key.encode(), digest_size=16).digest() for key in keys)
        return self._keys.find(np.frombuffer(digests, "<u8").reshape(-1, 2)).keys

    def _take(self) -> list[_Call]:
        """The calls that are written next, in order: one, or as many as `write_bytes` allows."""
        count = num_bytes = 0
        for call in self._waiting:
            num_bytes += call.num_bytes
            if count and num_bytes > self._limits.write_bytes:
                break
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    def _written(self, calls: Sequence[_Call]) -> Sequence[list[AppendedRecord] | BaseException]:
        """Append the records of several calls with one write. Returns: for each call what it answers or raises."""
        try:
            if self._closed is not None:
                raise self._closed
            entries = np.concatenate([call.records.entries for call in calls])
            answers, new = self._judged(entries)
            if new:
                payloads = [payload for call in calls for payload in call.records.payloads]
                self._write(entries[new], [payloads[i] for i in new])
        except BaseException as error:  # noqa: BLE001  (raised by each of the calls)
            return [error] * len(calls)
        self._tidy()
        remaining = iter(answers)
        return [[next(remaining) for _ in call.records.payloads] for call in calls]

    def _judged(self, entries: Entries) -> tuple[list[AppendedRecord], list[int]]:
        """The answer for each record, and the positions of those that are new."""
        known = self._keys.find(entries["digest"])
        found_keys, found_contents = known.keys.tolist(), known.contents.tolist()
        answers, new, seen = list[AppendedRecord](), list[int](), dict[bytes, tuple[int, int]]()
        for i, (digest, content) in enumerate(zip(digest_bytes(entries["digest"]), entries["content"].tolist(), strict=True)):
            first = (found_keys[i], found_contents[i]) if found_keys[i] >= 0 else seen.get(digest)
            if first is None:
                first = seen[digest] = (self.durable.next_key + len(new), content)
                answers.append(AppendedRecord(first[0]))
                new.append(i)
            else:
                answers.append(AppendedRecord(first[0], is_duplicate=True, differs=first[1] != content))
        return answers, new

    def _write(self, entries: Entries, payloads: Sequence[bytes]) -> None:
        """Append new records. Raises: UnavailableError: none of them counts."""
        try:
            if self._descriptor is None or self.durable.end >= self._limits.file_bytes:
                self._begin_file()
            assert self._descriptor is not None, "a file was begun"
            log = self.durable
            content = encode_batch(log.next_key, entries, payloads)
            try:
                write_at(self._descriptor, content, log.end)
                os.fdatasync(self._descriptor)
            except OSError:
                # What became of it is not known. The next file begins with the same key, and so it does not count.
                self._close_file()
                raise
        except OSError as error:
            raise _unavailable(self._folder, error) from error
        self._keys.add(entries)
        self._unwritten_bytes += len(content)
        self.durable = DurableLog(log.files, log.end + len(content), log.next_key + len(entries))

    def _begin_file(self) -> None:
        """Begin another file with the next record; it takes the place of the last one if that has no record, so that a full disk does not get
        a file with each call. Raises: OSError, UnavailableError."""
        self._close_file()
        log = self.durable
        kept = log.files[:-1] if log.end == HEAD_BYTES else log.files
        file = LogFile(self._folder / f"{len(kept):08d}{RECORD_FILE}", log.next_key)
        write_atomically(file.path, [encode_head(len(kept), file.first_key)])
        # From here on, a batch at the end of the file before it that was not acknowledged does not count.
        self.durable = DurableLog((*kept, file), HEAD_BYTES, log.next_key)
        self._descriptor = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)

    def _tidy(self) -> None:
        """Write the keys in memory as a file once there are many, or once their records are many bytes."""
        if self._keys.num_held < self._limits.held_keys and self._unwritten_bytes < self._limits.file_bytes:
            return
        logger = get_logger("storage")
        try:
            self._keys.flush()
            self._unwritten_bytes = 0
        except ModynError as error:
            # The records are durable, and their keys known: after a restart they are read from the log.
            logger.warning("keys_not_written", folder=str(self._folder), error=error.message)
        except Exception:
            # As above; calls that wait for their turn must get it all the same.
            logger.exception("keys_not_written", folder=str(self._folder))

    def merge_keys(self) -> None:
        """Merge small files of idempotency keys; appends go on meanwhile. Raises: UnavailableError, CorruptStateError."""
        self._keys.merge()

    def close(self, error: ModynError) -> None:
        """Let appends raise `error` from now on; returns when none is being written."""
        with self._turn:
            self._closed = error
            while self._is_writing:
                self._turn.wait()
            self._close_file()

    def _close_file(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    # Recovery

    def _recovered(self, num_indexed: int) -> DurableLog:
        """Read the log as it was left, from the first record on whose key is in memory only. Raises: OSError, ModynError."""
        files = self._files()
        if not files:
            self._check_complete(0, num_indexed)
            return DurableLog((), 0, 0)
        # What a process before this one has written and not synced counts from here on.
        sync(files[-1].path)
        sync(self._folder)
        first = max(i for i, file in enumerate(files) if i == 0 or file.first_key <= self._keys.covered)
        log = DurableLog(tuple(files), 0, files[-1].first_key)
        for number in range(first, len(files) - 1):
            for batch in log.batches(number, HEAD_BYTES, files[number].first_key):
                self._remember(batch)
        log = self._recovered_last(log)
        self._check_complete(log.next_key, max(num_indexed, self._keys.end))
        with open(files[-1].path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > log.end:
                refuse_later_batch(files[-1].path, file, log.end, log.next_key)
                get_logger("storage").warning("unfinished_records_left", path=str(files[-1].path), num_bytes=size - log.end)
                return log
        self._descriptor = os.open(files[-1].path, os.O_RDWR | os.O_CLOEXEC)
        return log

    def _recovered_last(self, log: DurableLog) -> DurableLog:
        """The log with all whole batches of its last file."""
        end, next_key = HEAD_BYTES, log.next_key
        with open(log.files[-1].path, "rb") as file:
            for batch in read_batches(file, HEAD_BYTES, os.fstat(file.fileno()).st_size):
                if batch.first_key != next_key:
                    break
                self._remember(batch)
                end, next_key = batch.end, batch.end_key
        return DurableLog(log.files, end, next_key)

    def _remember(self, batch: RecordBatch) -> None:
        """Add the keys of a batch, but for those that are known already."""
        if (skipped := self._keys.end - batch.first_key) < len(batch.entries):
            self._keys.add(batch.entries[skipped:])
            self._unwritten_bytes += batch.end - batch.start
            self._tidy()

    def _files(self) -> list[LogFile]:
        files: list[LogFile] = []
        for number, path in enumerate(sorted(self._folder.glob(f"*{RECORD_FILE}"))):
            with open(path, "rb") as file:
                found, first_key = read_head(str(path), file)
            if found != number or (first_key < files[-1].first_key if files else first_key):
                raise KIND.corrupt(
                    path, f"it is file {found} of its log, from record {first_key} on, where file {number} was expected"
                )
            files.append(LogFile(path, first_key))
        return files

    def _check_complete(self, num_found: int, num_expected: int) -> None:
        if num_found < num_expected:
            raise CorruptStateError(
                f"the record log in {self._folder} has {num_found} records, and {num_expected} were appended; restore it from a backup"
            )


@dataclass(slots=True, eq=False)
class _Call:
    """Records that wait to be written. outcome: what the call answers, or the error that it raises; None: it waits."""

    records: PreparedRecords
    outcome: list[AppendedRecord] | BaseException | None = None

    @property
    def num_bytes(self) -> int:
        entries = self.records.entries
        return int(entries.nbytes + entries["length"].sum(dtype=np.int64))


def _unavailable(folder: Path, error: OSError) -> UnavailableError:
    return UnavailableError(
        f"cannot write the records in {folder}: {error.strerror or error}; make the folder writable for the service and check the space on its "
        "disk; then repeat the call"
    )
