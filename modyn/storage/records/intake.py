"""The intake of a dataset of records: checks and appends records, and turns them into samples shortly after."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from modyn._core import FIRST_SECOND, LAST_SECOND, TimeFormat, show_time
from modyn.config.system import StorageConfig
from modyn.errors import CorruptStateError, InvalidArgumentError, ModynError, NotFoundError, UnavailableError
from modyn.records import why_no_label
from modyn.rpc.logs import get_logger
from modyn.storage.files.file_system import SeenFile
from modyn.storage.formats.record_file import HEAD_BYTES, RecordBatch
from modyn.storage.formats.timestamps import TimeRange
from modyn.storage.ingest.fingerprints import tail_of
from modyn.storage.ingest.ingestion import SAMPLES_INGESTED
from modyn.storage.ingest.locks import hold_dataset
from modyn.storage.ingest.open_dataset import QUARANTINE, OpenDataset
from modyn.storage.ingest.segment_writer import SegmentWriter
from modyn.storage.model.file_table import FileRow
from modyn.storage.model.records import MOST_RECORDS, AppendedRecord, FileProblem, IngestProgress, NewRecord
from modyn.storage.model.samples import IndexedSamples
from modyn.storage.records.log import DurableLog, PreparedRecords, RecordLog, RecordLogLimits

MOST_KEY_CHARACTERS: Final = 128
"""Largest length of an idempotency key."""
_A_YEAR_S: Final = 365 * 86_400
"""Smallest time, in seconds since 1970, that is suggested to the client as the meaning of a number in ms, us or ns. A number that would mean an
earlier time is more likely in a coarser unit."""
_AUTOMATIC: Final = TimeFormat()
_DATES: Final = (TimeFormat("%Y%m%d"), TimeFormat("%Y%m%d%H%M%S"))
"""Forms of dates that a client most likely sends as a number by mistake."""
_SEND_SECONDS: Final = "send seconds since 1970, or none for the time of arrival"
_DECLARE: Final = "where a dataset counts seconds from 0, `modyn data change NAME -o timestamp_format=s` says so, and any number is one of seconds"
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
"""Longest pause after an error, before the next attempt to make samples. Each pause is twice as long as the one before."""
_SEALED_SAMPLES: Final = 1 << 18
"""About this number of records are held in memory at once when they become samples."""


class RecordIntake:
    """Appends records to the log of one dataset, and makes samples of them in its own thread.

    Records become samples when the first one has waited for `records.seal_s` seconds, or when there are `records.seal_samples` records. These records
    become a segment, with the same commit and publication as for any dataset. After a crash, the next start makes samples of the records that are
    only in the log.
    """

    def __init__(self, dataset: OpenDataset, settings: StorageConfig, limits: RecordLogLimits = RecordLogLimits()) -> None:  # noqa: B008  (frozen)
        """Args: settings: the section `storage` of the system file."""
        self._dataset, self._settings, self._limits = dataset, settings, limits
        self._opening = threading.Lock()
        """Lets one thread open the log, and protects the next two fields."""
        self._log: RecordLog | None = None
        self._damage: CorruptStateError | None = None
        """The damage of the log, because of which no record is accepted until storage is restarted. The error is kept, so that a call does not read
        the damaged log again."""
        self._stopping = threading.Event()
        """Set once, to stop the thread. The event also ends the thread's pause after an error."""
        self._pending = threading.Event()
        """Wakes the thread when records wait to become samples, or when the thread must stop."""
        self._full = threading.Event()
        """Ends the thread's wait for more records when there are enough for a segment, or when the thread must stop."""
        self._thread = threading.Thread(target=self._run, name=f"records-{dataset.name}", daemon=True)
        # The process before this one may have left records in the log; samples are made of them without a wait.
        self._pending.set()
        self._full.set()
        self._thread.start()

    def append(self, records: Sequence[NewRecord]) -> list[AppendedRecord]:
        """Append records. Returns one answer for each record, in order. Answered records are durable, and become samples soon.

        Raises: InvalidArgumentError: a record is not valid; then no record of the call is appended. UnavailableError: the disk cannot be written
        to, or storage stops; the call may be repeated. CorruptStateError: the log is damaged.
        """
        float_labels = self._dataset.row.float_labels
        now = int(time.time())
        self._check(records, float_labels, now)
        log = self._open_log()
        self._refuse_dates(records, log)
        answers = log.append(PreparedRecords.of(records, float_labels=float_labels, now=now))
        # The records may already be samples, if the thread was faster. Then there is nothing to wake it for.
        if (num_pending := log.durable.next_key - self._dataset.row.next_key) > 0:
            self._pending.set()
            if num_pending >= self._settings.records.seal_samples:
                self._full.set()
        return answers

    def set_labels(self, labels: Mapping[str, float]) -> list[AppendedRecord]:
        """Set the labels of records that have none, by idempotency key, durably. Returns one answer for each label, in order. The first label of a
        record is kept: a repeated label is marked as a duplicate, a different one also with `differs`.

        Raises: InvalidArgumentError: a label is not valid. NotFoundError: there is no such record. In both cases no label is set. UnavailableError:
        the disk cannot be written to; the call may be repeated. CorruptStateError: the log is damaged.
        """
        float_labels = self._dataset.row.float_labels
        if len(labels) > MOST_RECORDS:
            raise InvalidArgumentError(
                f"{len(labels):,} labels are too many for one call; send at most {MOST_RECORDS:,} with each"
            )
        for key, label in labels.items():
            if reason := why_no_label(label, float_labels):
                raise InvalidArgumentError(
                    f"record '{key[:MOST_KEY_CHARACTERS]}' of dataset '{self._dataset.name}': its {reason}. None of this call was set"
                )
        sample_keys = self._open_log().find(list(labels))
        for key, sample_key in zip(labels, sample_keys.tolist(), strict=True):
            if sample_key < 0:
                raise NotFoundError(
                    f"dataset '{self._dataset.name}' has no record with the key '{key[:MOST_KEY_CHARACTERS]}'; append it first. None of the labels "
                    "of this call was set"
                )
        # Only a sample can have a late label, so the records that are not samples yet become samples first.
        if len(sample_keys) and int(sample_keys.max()) >= self._dataset.snapshot().index.next_key:
            self.seal()
        values = (
            np.array(list(labels.values()), np.float64) if float_labels else np.array([int(v) for v in labels.values()], np.int64)
        )
        return self._dataset.set_labels(sample_keys, values)

    def seal(self) -> IngestProgress:
        """Turn all remaining records into samples. Raises: UnavailableError, ConflictError, CorruptStateError: a record in the log is damaged."""
        log = self._open_log()
        with hold_dataset(self._dataset):
            # Another process may have changed the dataset before its lock was taken.
            self._dataset.refresh()
            try:
                added = _seal(self._dataset, log.durable)
            except _DamagedLogError as error:
                with self._opening:
                    self._damage = error
                raise
        log.merge_keys()
        num_files = len(self._dataset.files)
        return IngestProgress(num_files, num_files if added else 0, added, finished=True)

    def ask_to_stop(self) -> None:
        """Refuse further records, and let the thread end after its present work. The method does not wait for the thread."""
        with self._opening:
            self._stopping.set()
            if self._log is not None:
                self._log.close(self._refusal())
        # Both waits of the thread must end for it to see that it is to stop.
        self._pending.set()
        self._full.set()

    def stop(self) -> None:
        """Call `ask_to_stop`, and wait until the thread has ended, at most 10 s."""
        self.ask_to_stop()
        # A thread cannot wait for its own end.
        if threading.current_thread() is not self._thread:
            self._thread.join(10.0)

    def _open_log(self) -> RecordLog:
        """Return the log. The first call opens it."""
        with self._opening:
            if self._stopping.is_set():
                raise self._refusal()
            if self._damage is not None:
                raise CorruptStateError(self._damage.message)
            if self._log is None:
                folder = Path(self._dataset.filesystem.base)
                num_indexed = self._dataset.row.next_key
                try:
                    self._log = RecordLog(folder, self._dataset.folder / QUARANTINE, num_indexed, self._limits)
                except CorruptStateError as error:
                    self._damage = error
                    raise
            return self._log

    def _refusal(self) -> ModynError:
        return self._dataset.closed or UnavailableError(
            f"storage is stopping; append the records to dataset '{self._dataset.name}' again when it is back"
        )

    def _check(self, records: Sequence[NewRecord], float_labels: bool, now: int) -> None:
        """Raise InvalidArgumentError that names the first record that is not valid."""
        if len(records) > MOST_RECORDS:
            raise InvalidArgumentError(
                f"{len(records):,} records are too many for one call; send at most {MOST_RECORDS:,} with each"
            )
        tolerance_s = self._settings.future_tolerance_s
        latest = LAST_SECOND if tolerance_s is None else min(LAST_SECOND, now + tolerance_s)
        for i, record in enumerate(records):
            if reason := why_not_taken(
                record, float_labels, self._settings.records.max_bytes, latest, self._dataset.format.times
            ):
                raise InvalidArgumentError(
                    f"record {i} of the call, for dataset '{self._dataset.name}': {reason}. None of the records of this call was appended"
                )

    def _refuse_dates(self, records: Sequence[NewRecord], log: RecordLog) -> None:
        """Raise InvalidArgumentError if the times of a call are most likely years, months or days. The same rule applies to the times in files."""
        if not self._dataset.format.times_are_digits:
            return
        reason = why_no_seconds(records, self._dataset.snapshot().index.time_range)
        if reason and log.durable.next_key > self._dataset.row.next_key:
            # Only samples are compared, so records that wait become samples: they may show that the dataset counts seconds from 0.
            self.seal()
            reason = why_no_seconds(records, self._dataset.snapshot().index.time_range)
        if reason:
            raise InvalidArgumentError(f"dataset '{self._dataset.name}': {reason}. None of the records of this call was appended")

    # Making samples

    def _run(self) -> None:
        logger = get_logger("storage")
        logged, pause_s = "", _FIRST_PAUSE_S
        while True:
            # An append or `ask_to_stop` ends this wait.
            self._pending.wait()
            # Records are collected for `seal_s` seconds, so that many become one segment. The wait ends earlier when there are enough for a segment.
            self._full.wait(self._settings.records.seal_s)
            if self._stopping.is_set():
                return
            # Cleared before the work: a record that arrives during the work sets the events again, so it is not forgotten.
            self._pending.clear()
            self._full.clear()
            try:
                self.seal()
                logged, pause_s = "", _FIRST_PAUSE_S
                continue
            except ModynError as error:
                if self._stopping.is_set() or (isinstance(error, NotFoundError) and self._dataset.closed):
                    return
                if error.message != logged:
                    logger.error("records_not_sealed", dataset=self._dataset.name, error=error.message, reason=error.reason)
                logged = error.message
            except Exception as error:
                # If the thread ended, records would be accepted but never become samples.
                if repr(error) != logged:
                    logger.exception("records_not_sealed", dataset=self._dataset.name)
                logged = repr(error)
            # Try again also without new records: the database or the disk may work again.
            self._pending.set()
            self._stopping.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


class _DamagedLogError(CorruptStateError):
    """A record that is not yet a sample is damaged."""


def why_not_taken(record: NewRecord, float_labels: bool, most_bytes: int, latest: float, times: TimeFormat = _AUTOMATIC) -> str:
    """Return why a record is not valid, and what to do; empty: the record is valid.

    Args: most_bytes: largest size of a payload. latest: last time that is allowed. times: reads times by the `timestamp_format` of the dataset.
    """
    if not 1 <= len(record.key) <= MOST_KEY_CHARACTERS:
        if not record.key:
            return f"it has no idempotency key; give it one of 1 to {MOST_KEY_CHARACTERS} characters, the same when the call is repeated"
        return f"its idempotency key has {len(record.key)} characters; at most {MOST_KEY_CHARACTERS} are allowed: send a digest of it"
    if len(record.payload) > most_bytes:
        return f"its payload has {len(record.payload):,} bytes; allowed are {most_bytes:,}, which storage.records.max_bytes sets in the system file"
    if record.label is not None and (reason := why_no_label(record.label, float_labels)):
        return f"its {reason}"
    if record.timestamp is not None and not _are_seconds(record.timestamp, latest, times):
        return f"its time is {record.timestamp}; {_advice(record.timestamp, latest)}"
    return ""


def why_no_seconds(records: Sequence[NewRecord], others: tuple[int, int] | None) -> str:
    """Return what the times of the records of one call most likely are, by `TimeRange.why_no_seconds`; empty: the times are seconds."""
    given = [record.timestamp for record in records if record.timestamp is not None]
    return TimeRange.of(np.array(given)).why_no_seconds(others, f"{_SEND_SECONDS}; {_DECLARE}") if given else ""


def _are_seconds(timestamp: int, latest: float, times: TimeFormat) -> bool:
    """Whether a number is a time in seconds. By the rule for times in files, a number that is most likely a date or in another unit is no such
    time.
    """
    if not FIRST_SECOND <= timestamp <= latest:
        return False
    try:
        return times.of_integer(timestamp) <= latest
    except ValueError:
        return False


def _advice(timestamp: int, latest: float) -> str:
    may_be_seconds = f"; {_DECLARE}" if FIRST_SECOND <= timestamp <= latest else ""
    for date in _DATES:
        with suppress(ValueError):
            return f"as a date that is {show_time(date.of_integer(timestamp))}: {_SEND_SECONDS}{may_be_seconds}"
    for unit in ("ms", "us", "ns"):
        with suppress(ValueError):
            if _A_YEAR_S <= (seconds := TimeFormat(unit).of_integer(timestamp)) <= latest:
                return f"in {unit} that is {show_time(seconds)}: {_SEND_SECONDS}"
    if may_be_seconds:
        return f"it has the digits of a date: {_SEND_SECONDS}{may_be_seconds}"
    return f"{_SEND_SECONDS}. Times are of the years 1 to 9999, and in the future by at most storage.future_tolerance_s in the system file"


def _seal(dataset: OpenDataset, log: DurableLog) -> int:
    """Make samples of the records that are not samples yet, in order. Returns the number of new samples. The caller holds the dataset by
    `hold_dataset`.
    """
    first_key, last = dataset.row.next_key, len(dataset.files) - 1
    # Equal numbers of records and of files: nothing was appended, and no file was begun, since the last time.
    if log.next_key == first_key and len(log.files) == last + 1:
        return 0
    if log.next_key < first_key:
        raise CorruptStateError(
            f"dataset '{dataset.name}' has {first_key} samples, and its record log in {dataset.filesystem.base} only {log.next_key} records; "
            "restore it from a backup"
        )
    row = dataset.catalogue.file(dataset.row.id, last) if last >= 0 else None
    writer, next_key = SegmentWriter(dataset), first_key
    for number in range(max(0, last), len(log.files)):
        if row is None or row.file_id != number:
            row = FileRow(number, log.files[number].path.name, HEAD_BYTES, 0, HEAD_BYTES, 0, "")
        held = list[RecordBatch]()
        try:
            for batch in log.batches(number, row.indexed_end, next_key):
                held.append(batch)
                next_key = batch.end_key
                if next_key - held[0].first_key >= _SEALED_SAMPLES:
                    row = _add(dataset, writer, row, held)
                    writer.flush()
                    held = []
        except CorruptStateError as error:
            path = str(log.files[number].path)
            dataset.report_damage(path, FileProblem(path, error.message, time.time()))
            raise _DamagedLogError(error.message) from error
        if held or number == writer.next_file_id:
            row = _add(dataset, writer, row, held)
    writer.flush()
    writer.merge()
    SAMPLES_INGESTED.labels(dataset.name).inc(next_key - first_key)
    return next_key - first_key


def _add(dataset: OpenDataset, writer: SegmentWriter, row: FileRow, batches: Sequence[RecordBatch]) -> FileRow:
    """Add the samples of batches of one file, whose row is `row`. Returns the row with these samples counted."""
    if batches:
        writer.add(row.file_id, [_joined([batch.samples(float_labels=dataset.row.float_labels) for batch in batches])])
    end = batches[-1].end if batches else row.indexed_end
    path = dataset.filesystem.full_path(row.path)
    # Only the indexed bytes count as the size of the file. When it has more, readers compare the last bytes before that size.
    seen = SeenFile(row.path, end, os.stat(path).st_mtime_ns)
    row = row._replace(
        size=end,
        mtime_ns=seen.mtime_ns,
        indexed_end=end,
        num_samples=row.num_samples + sum(len(batch.entries) for batch in batches),
        tail=tail_of(dataset.filesystem, dataset.format, seen),
    )
    writer.complete(row)
    return row


def _joined(parts: Sequence[IndexedSamples]) -> IndexedSamples:
    """Join consecutive samples of one file."""

    def column(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])

    return IndexedSamples(column("offsets"), column("lengths"), column("labels"), column("timestamps"), parts[-1].end)
