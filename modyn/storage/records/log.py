"""The log of a dataset of records: append-only files, in which each record counts exactly once by its idempotency key.

An append returns when its records are on the disk. Calls that arrive while the disk is busy share the next write and its `fdatasync`. Record n of the
log becomes the sample with the key n, so the key is known before the sample exists.

After a crash, the files alone define the content of the log (`formats/record_file.py`). An incomplete batch was never acknowledged, and is ignored.
The next records begin a new file. A complete batch is valid, although it may not have been acknowledged: a client without an answer repeats the call,
and the answer marks the records as duplicates. Files are never truncated or overwritten, so that readers of indexed records are not disturbed.
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
from modyn.storage.formats.record_file import (
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
from modyn.storage.model.dataset_records import AppendedRecord, NewRecord
from modyn.storage.records.key_index import KeyIndex, digest_bytes


@dataclass(frozen=True, slots=True)
class RecordLogLimits:
    """file_bytes: if the last file has at least this size, the next append begins another file. write_bytes: approximate largest size of a write.
    held_keys: if at least this number of idempotency keys is in memory (about 15 MB), they are written to a file."""

    file_bytes: int = 1 << 28
    write_bytes: int = 1 << 26
    held_keys: int = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class PreparedRecords:
    """The records of one call: n entries of dtype ENTRY, and n payloads."""

    entries: Entries
    payloads: Sequence[bytes]

    @staticmethod
    def of(records: Sequence[NewRecord], *, float_labels: bool, now: int) -> PreparedRecords:
        """Compute the digests of records. Args: now: timestamp of the records without a timestamp, in seconds since 1970."""
        entries = np.zeros(len(records), ENTRY)
        keys, contents, labels = [], [], []
        for record in records:
            label = encode_label(record.label, float_labels=float_labels)
            # The digest of the content leaves out the time of arrival, which differs when a call is repeated.
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
    """A file of the log. first_key: key of its first record."""

    path: Path
    first_key: int


@dataclass(frozen=True, slots=True)
class DurableLog:
    """The durable content of the log. end: number of valid bytes of the last file. next_key: number of records."""

    files: tuple[LogFile, ...]
    end: int
    next_key: int

    def batches(self, number: int, start: int, next_key: int) -> Iterator[RecordBatch]:
        """Yield the batches of file `number` from byte `start` on. The batch at `start` begins with record `next_key`.

        Raises: CorruptStateError: a batch is damaged. UnavailableError: the file cannot be read.
        """
        file, is_last = self.files[number], number + 1 == len(self.files)
        end_key = self.next_key if is_last else self.files[number + 1].first_key
        try:
            with open(file.path, "rb") as opened:
                size = self.end if is_last else os.fstat(opened.fileno()).st_size
                batches = read_batches(opened, start, size)
                # Data after the last valid record was never acknowledged; the next file replaces this data.
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
    """A log that one process has opened for appending. Any number of threads of this process may use the log."""

    def __init__(self, folder: Path, quarantine: Path, num_indexed: int, limits: RecordLogLimits = RecordLogLimits()) -> None:
        """Open the log in `folder`, also after a crash. A missing folder is created.

        Args: quarantine: folder to which damaged files of idempotency keys are moved. num_indexed: number of records that are samples already.
        Raises: CorruptStateError: records are damaged or missing. UnavailableError: the disk cannot be used.
        """
        self._folder, self._limits = folder, limits
        self._turn = threading.Condition()
        """Protects the next three fields. A call waits on this condition until its records are written, or until it is the turn of this call to
        write."""
        self._waiting: list[_Call] = []
        self._is_writing = False
        self._closed: ModynError | None = None
        # Only the call that is writing changes the fields below.
        self._descriptor: int | None = None
        """Descriptor of the last file; None: the next append begins another file."""
        self._unwritten_bytes = 0
        """Approximate number of bytes of the records whose keys are only in memory. A restart must read these records again."""
        try:
            make_folder(folder)
            for path in folder.glob(f"*{RECORD_FILE}.*{TEMPORARY_SUFFIX}"):
                path.unlink(missing_ok=True)
            # The files of keys are opened first, so that recovery reads only the records that no file of keys covers.
            self._keys = KeyIndex.open(folder, quarantine)
            self.durable = self._recover(num_indexed)
            """The durable content of the log. Each write assigns a new object, so the field is read without a lock."""
        except OSError as error:
            raise _unavailable(folder, error) from error

    # Appending

    def append(self, records: PreparedRecords) -> list[AppendedRecord]:
        """Append the records with unknown idempotency keys. Returns an answer for each record, in order. Answered records are durable.

        Raises: UnavailableError: the disk cannot be written to, or the log is closed. The records may have been appended or not; the call may be
        repeated. CorruptStateError.
        """
        if not len(records.entries):
            return []
        call = _Call(records)
        with self._turn:
            self._waiting.append(call)
            while self._is_writing and call.outcome is None:
                self._turn.wait()  # The writing call ends this wait: it has written these records, or it passes the turn to this call.
            if call.outcome is None:
                self._is_writing = True
        while call.outcome is None:
            with self._turn:
                calls = self._take()
            outcomes = self._write_calls(calls)
            with self._turn:
                for taken, outcome in zip(calls, outcomes, strict=True):
                    taken.outcome = outcome
                # A call whose records are written passes the turn to a waiting call, so that it does not write the records of other calls forever.
                self._is_writing = call.outcome is None
                self._turn.notify_all()
        if isinstance(call.outcome, BaseException):
            raise call.outcome
        return call.outcome

    def find(self, keys: Sequence[str]) -> Int64Array:
        """Return the sample keys of the records with the idempotency keys `keys`, int64 (n,); -1: there is no such record."""
        # A record that is not a sample yet has a sample key too, because record n becomes sample n.
        digests = b"".join(hashlib.blake2b(key.encode(), digest_size=16).digest() for key in keys)
        return self._keys.find(np.frombuffer(digests, "<u8").reshape(-1, 2)).keys

    def _take(self) -> list[_Call]:
        """Remove and return the calls to write next, in order: at least one call, and several calls only up to `write_bytes` bytes in total."""
        count = num_bytes = 0
        for call in self._waiting:
            num_bytes += call.num_bytes
            if count and num_bytes > self._limits.write_bytes:
                break
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    def _write_calls(self, calls: Sequence[_Call]) -> Sequence[list[AppendedRecord] | BaseException]:
        """Append the records of several calls with one write. Returns the answer or the error for each call."""
        try:
            if self._closed is not None:
                raise self._closed
            entries = np.concatenate([call.records.entries for call in calls])
            answers, new = self._judge(entries)
            if new:
                payloads = [payload for call in calls for payload in call.records.payloads]
                self._write(entries[new], [payloads[i] for i in new])
        except BaseException as error:  # noqa: BLE001  (raised again by each of the calls)
            return [error] * len(calls)
        self._tidy()
        remaining = iter(answers)
        return [[next(remaining) for _ in call.records.payloads] for call in calls]

    def _judge(self, entries: Entries) -> tuple[list[AppendedRecord], list[int]]:
        """Return the answer for each record, and the positions of the new records."""
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
        """Append new records. Raises: UnavailableError: the disk cannot be written to; then none of the records is valid."""
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
                # The batch may be on the disk. The next append begins a file with the same record number, which makes the batch invalid.
                self._close_file()
                raise
        except OSError as error:
            raise _unavailable(self._folder, error) from error
        # The keys are added only after the sync, because a record with a known key is answered as durable.
        self._keys.add(entries)
        self._unwritten_bytes += len(content)
        self.durable = DurableLog(log.files, log.end + len(content), log.next_key + len(entries))

    def _begin_file(self) -> None:
        """Begin another file with the next record. If the last file has no record, the new file replaces it, so that failed calls on a full disk do
        not leave one file each. Raises: OSError, UnavailableError."""
        self._close_file()
        log = self.durable
        kept = log.files[:-1] if log.end == HEAD_BYTES else log.files
        file = LogFile(self._folder / f"{len(kept):08d}{RECORD_FILE}", log.next_key)
        write_atomically(file.path, [encode_head(len(kept), file.first_key)])
        # From now on, an unacknowledged batch at the end of the previous file is invalid.
        self.durable = DurableLog((*kept, file), HEAD_BYTES, log.next_key)
        self._descriptor = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)

    def _tidy(self) -> None:
        """Write the keys in memory to a file, if there are many keys, or if their records have many bytes."""
        if self._keys.num_held < self._limits.held_keys and self._unwritten_bytes < self._limits.file_bytes:
            return
        logger = get_logger("storage")
        try:
            self._keys.flush()
            self._unwritten_bytes = 0
        except ModynError as error:
            # The records are durable, and their keys are known. After a restart the keys are read from the log.
            logger.warning("keys_not_written", folder=str(self._folder), error=error.message)
        except Exception:
            # An unexpected failure loses no record either. The error is not raised, so that waiting calls continue.
            logger.exception("keys_not_written", folder=str(self._folder))

    def merge_keys(self) -> None:
        """Merge small files of idempotency keys. Appends may run meanwhile. Raises: UnavailableError, CorruptStateError."""
        self._keys.merge()

    def close(self, error: ModynError) -> None:
        """Make appends raise `error` from now on. Returns when no append is being written."""
        with self._turn:
            self._closed = error
            while self._is_writing:
                self._turn.wait()  # The writing call ends this wait when it passes the turn.
            self._close_file()

    def _close_file(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    # Recovery

    def _recover(self, num_indexed: int) -> DurableLog:
        """Read the log that the last process left, from the first record whose key is in no file of keys. Raises: OSError, ModynError."""
        files = self._files()
        if not files:
            self._check_complete(0, num_indexed)
            return DurableLog((), 0, 0)
        # An earlier process may have written data without a sync. After this sync the data is durable, so it may be acknowledged.
        sync(files[-1].path)
        sync(self._folder)
        # A log file whose last records are in no file of keys is read from its beginning; `_remember` skips records with known keys.
        first = max(i for i, file in enumerate(files) if i == 0 or file.first_key <= self._keys.covered)
        log = DurableLog(tuple(files), 0, files[-1].first_key)
        for number in range(first, len(files) - 1):
            for batch in log.batches(number, HEAD_BYTES, files[number].first_key):
                self._remember(batch)
        log = self._recover_last_file(log)
        self._check_complete(log.next_key, max(num_indexed, self._keys.end))
        with open(files[-1].path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > log.end:
                # The next append begins a new file, because nothing is overwritten.
                refuse_later_batch(files[-1].path, file, log.end, log.next_key)
                get_logger("storage").warning("unfinished_records_left", path=str(files[-1].path), num_bytes=size - log.end)
                return log
        self._descriptor = os.open(files[-1].path, os.O_RDWR | os.O_CLOEXEC)
        return log

    def _recover_last_file(self, log: DurableLog) -> DurableLog:
        """Return the log up to the last complete batch of its last file."""
        end, next_key = HEAD_BYTES, log.next_key
        with open(log.files[-1].path, "rb") as file:
            for batch in read_batches(file, HEAD_BYTES, os.fstat(file.fileno()).st_size):
                if batch.first_key != next_key:
                    break
                self._remember(batch)
                end, next_key = batch.end, batch.end_key
        return DurableLog(log.files, end, next_key)

    def _remember(self, batch: RecordBatch) -> None:
        """Add the unknown keys of a batch to the index."""
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
    """Records that wait to be written. outcome: the answers or the error of the call; None: the call still waits."""

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
