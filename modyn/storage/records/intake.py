"""The intake of a dataset of records: checks and appends records, and makes samples of the records shortly after."""

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
from modyn.storage.model.dataset_records import MOST_RECORDS, AppendedRecord, FileProblem, IngestProgress, NewRecord
from modyn.storage.model.file_table import FileRow
from modyn.storage.model.samples import IndexedSamples
from modyn.storage.records.log import DurableLog, PreparedRecords, RecordLog, RecordLogLimits

MOST_KEY_CHARACTERS: Final = 128
"""Largest length of an idempotency key."""
_A_YEAR_S: Final = 365 * 86_400
"""Error messages suggest that a number is in ms, us or ns only if its time is at least this number of seconds after 1970. If the time is earlier, the
number is more likely in a coarser unit."""
_AUTOMATIC: Final = TimeFormat()
_DATES: Final = (TimeFormat("%Y%m%d"), TimeFormat("%Y%m%d%H%M%S"))
"""Date formats that clients are most likely to send as a number by mistake."""
_SEND_SECONDS: Final = "send seconds since 1970, or none for the time of arrival"
_DECLARE: Final = "where a dataset counts seconds from 0, `modyn data change NAME -o timestamp_format=s` says so, and any number is one of seconds"
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
"""Longest pause after an error, before the next attempt to make samples. Each pause is twice as long as the previous pause."""
_SEALED_SAMPLES: Final = 1 << 18
"""Approximate number of records that are in memory at once while records become samples."""


class RecordIntake:
    """Appends records to the log of one dataset, and makes samples of them in its own thread.

    Records become samples when the oldest record has waited for `records.seal_s` seconds, or when `records.seal_samples` records are waiting. All
    waiting records become one segment, or several if very many records wait. They are committed and published as in any
    dataset. After a crash, the next start makes samples of the records that are only in the log.
    """

    def __init__(self, dataset: OpenDataset, settings: StorageConfig, limits: RecordLogLimits = RecordLogLimits()) -> None:  # noqa: B008  (frozen)
        """Args: settings: the section `storage` of the system file."""
        self._dataset, self._settings, self._limits = dataset, settings, limits
        self._opening = threading.Lock()
        """Lets one thread open the log, and protects the next two fields."""
        self._log: RecordLog | None = None
        self._damage: CorruptStateError | None = None
        """The error of a damaged log. Once the error is set, no record is accepted and no call reads the log again, until storage is restarted."""
        self._stopping = threading.Event()
        """Set once, to stop the thread. The event also ends the thread's pause after an error."""
        self._pending = threading.Event()
        """Wakes the thread when records wait to become samples, or when the thread must stop."""
        self._full = threading.Event()
        """Ends the thread's wait for more records when there are enough for a segment, or when the thread must stop."""
        self._thread = threading.Thread(target=self._run, name=f"records-{dataset.name}", daemon=True)
        # The previous process may have left records in the log. The thread makes samples of these records without a wait.
        self._pending.set()
        self._full.set()
        self._thread.start()

    def append(self, records: Sequence[NewRecord]) -> list[AppendedRecord]:
        """Append records. Returns one answer for each record, in order. Answered records are durable, and become samples soon.

        Raises: InvalidArgumentError: a record is not valid; then no record of the call is appended. UnavailableError: the disk cannot be written
        to, or storage is stopping; the call may be repeated. CorruptStateError: the log is damaged.
        """
        float_labels = self._dataset.row.float_labels
        now = int(time.time())
        self._check(records, float_labels, now)
        log = self._open_log()
        self._refuse_dates(records, log)
        answers = log.append(PreparedRecords.of(records, float_labels=float_labels, now=now))
        # The thread need not be woken if it has already made samples of the records.
        if (num_pending := log.durable.next_key - self._dataset.row.next_key) > 0:
            self._pending.set()
            if num_pending >= self._settings.records.seal_samples:
                self._full.set()
        return answers

    def set_labels(self, labels: Mapping[str, float]) -> list[AppendedRecord]:
        """Durably set the labels of records without a label, by idempotency key. Returns one answer for each label, in order. A record keeps its
        first label: the answer for a further label has `is_duplicate`, and `differs` if the labels are not equal.

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
        """Make samples of all remaining records. Raises: UnavailableError, ConflictError, CorruptStateError: a record in the log is damaged."""
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
        """Refuse further records, and let the thread end after its current work. The method does not wait for the thread."""
        with self._opening:
            self._stopping.set()
            if self._log is not None:
                self._log.close(self._refusal())
        # Both waits of the thread must end, so that the thread reads `_stopping`.
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
            # `time_range` covers only samples. So waiting records become samples first: they may show that the dataset counts seconds from 0.
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
            # Both events are cleared before the work. A record that arrives during the work sets the events again, so it is not forgotten.
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
            # Try again after the pause, without a wait for new records, because the database or the disk may work again.
            self._pending.set()
            self._stopping.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


class _DamagedLogError(CorruptStateError):
    """A record that is not yet a sample is damaged."""


def why_not_taken(record: NewRecord, float_labels: bool, most_bytes: int, latest: float, times: TimeFormat = _AUTOMATIC) -> str:
    """Return why a record is not valid, and what to do; empty: the record is valid.

    Args: most_bytes: largest size of a payload. latest: last time that is allowed. times: the `timestamp_format` of the dataset.
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
    """Return why the times of one call's records are most likely not seconds, by `TimeRange.why_no_seconds`; empty: they are seconds."""
    given = [record.timestamp for record in records if record.timestamp is not None]
    return TimeRange.of(np.array(given)).why_no_seconds(others, f"{_SEND_SECONDS}; {_DECLARE}") if given else ""


def _are_seconds(timestamp: int, latest: float, times: TimeFormat) -> bool:
    """Whether a number is a time in seconds and, by the rule for times in files, neither most likely a date nor in another unit."""
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
    """Make samples of the records that are not samples yet, in order. Returns the number of new samples. Call within `hold_dataset`."""
    first_key, last = dataset.row.next_key, len(dataset.files) - 1
    # If the numbers of records and of files are equal, no record was appended and no file was begun since the last call.
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
    """Add the samples of `batches`, which are in the file of `row`. Returns the row, updated with these samples."""
    if batches:
        writer.add(row.file_id, [_joined([batch.samples(float_labels=dataset.row.float_labels) for batch in batches])])
    end = batches[-1].end if batches else row.indexed_end
    path = dataset.filesystem.full_path(row.path)
    # `size` is the number of indexed bytes. If the file is longer, readers compare the last bytes before `size`.
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
