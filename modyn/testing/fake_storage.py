"""In-memory storage with the same calls as the real clients, for tests of code that uses storage.

storage = FakeStorage()
storage.add_dataset("digits")
storage.add_samples("digits", timestamps=[1, 2], labels=[0, 1], payloads=[b"a", b"b"])
client, payloads = storage.client(), storage.payload_client()
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from modyn._core import KeySet
from modyn.config.dataset import DatasetConfig
from modyn.config.system_sections.buckets import RECORDS
from modyn.errors import CancelledError, ConfigError, InvalidArgumentError, NotFoundError
from modyn.records import NO_LABEL, Int64Array, Interval, LabelArray, SampleBatch, has_label
from modyn.registry import nearest
from modyn.storage.client import (
    AppendedRecord,
    ColumnValues,
    DatasetInfo,
    DatasetSchema,
    FileProblem,
    NewRecord,
    SamplePlace,
    StorageClient,
)
from modyn.storage.model.samples import Payloads, common_size
from modyn.storage.payloads import OnMissing, PayloadClient, PayloadStream
from modyn.storage.read.column_values import ValueEncoder
from modyn.storage.records.intake import why_no_seconds, why_not_taken
from modyn.testing.fake_streams import FakeNewLabels, FakeNewSamples
from modyn.testing.fakes import FakeClient
from modyn.testing.held_dataset import HeldDataset


class FakeStorage:
    """The state of a storage service in memory. If `before_fetch` is set, each payload request calls it with the keys; `before_fetch` may raise an
    error.
    """

    def __init__(self) -> None:
        # Protects all datasets. Notified when samples arrive and when a stream is cancelled. Reentrant, because methods call each other.
        self.arrived = threading.Condition(threading.RLock())
        self.datasets: dict[str, HeldDataset] = {}
        self.before_fetch: Callable[[Int64Array], None] | None = None

    def client(self) -> FakeStorageClient:
        """Return a new client for metadata."""
        return FakeStorageClient(self)

    def payload_client(self) -> FakePayloadClient:
        """Return a new client for payloads."""
        return FakePayloadClient(self)

    def add_dataset(self, name: str, float_labels: bool = False, *, records: bool = False) -> None:
        """Register a dataset without samples. The new dataset replaces a dataset of this name, and has another identity.

        Args: float_labels: labels are float64; false: int64. records: clients append the samples as records.
        """
        with self.arrived:
            fields = {"base_path": RECORDS} if records else {"base_path": f"/fake/{name}", "file_wrapper": "BinaryFileWrapper"}
            config = DatasetConfig.model_validate({"name": name, **fields})
            self.datasets[name] = HeldDataset(config, float_labels)

    def add_samples(
        self,
        name: str,
        timestamps: Sequence[int] | Int64Array,
        labels: Sequence[float] | LabelArray | None = None,
        payloads: Sequence[bytes] | None = None,
        columns: Mapping[str, Sequence[object]] | None = None,
    ) -> Int64Array:
        """Add samples and push them to open streams. Returns the keys, int64 (n,).

        Args: timestamps: n ints. labels: n numbers; None: all are 0. payloads: n byte strings; None: each is its key as text. columns: n values by
        name; None is a missing value.
        Raises: NotFoundError: the dataset does not exist. ValueError: labels or payloads differ in number from `timestamps`.
        """
        with self.arrived:
            dataset = self.find(name)
            first = len(dataset.timestamps)
            keys = np.arange(first, first + len(timestamps), dtype=np.int64)
            dataset.timestamps.extend(int(t) for t in timestamps)
            dataset.labels.extend([0] * len(timestamps) if labels is None else list(labels))
            dataset.payloads.extend([str(key).encode() for key in keys] if payloads is None else payloads)
            if not len(dataset.timestamps) == len(dataset.labels) == len(dataset.payloads):
                raise ValueError("timestamps, labels and payloads differ in length")
            for column, values in (columns or {}).items():
                dataset.columns.setdefault(column, {}).update(zip(keys.tolist(), values, strict=True))
            self.arrived.notify_all()
            return keys

    def find(self, name: str, identity: str = "") -> HeldDataset:
        """Return a dataset. Raises NotFoundError if the dataset does not exist or has another identity."""
        if name not in self.datasets:
            hint = nearest(name, list(self.datasets)) or ";"
            raise NotFoundError(f"there is no dataset '{name}'{hint} register it with `modyn data register`")
        if identity not in ("", found := self.datasets[name].identity):
            raise NotFoundError(
                f"dataset '{name}' was deleted, and another was registered under its name: {identity} is now {found}"
            )
        return self.datasets[name]

    def present(self, name: str, keys: Int64Array, on_missing: OnMissing, identity: str = "") -> Int64Array:
        """Return the positions of the keys that have samples: int64 (n,).

        Args: keys: int64 (n,). on_missing, identity: see `PayloadClient.fetch`.
        Raises: NotFoundError: a key never existed, or, with on_missing "raise", was deleted.
        """
        with self.arrived:
            dataset = self.find(name, identity)
            _refuse_unknown(name, dataset, keys)
            if on_missing == "raise":
                _refuse_missing(name, dataset, keys)
            return np.flatnonzero(np.asarray([dataset.has(int(key)) for key in keys], bool))

    def payloads(self, name: str, keys: Int64Array) -> Payloads:
        """Return payloads and labels of `keys`, int64 (n,), in the order of `keys`. The keys must exist (see `present`)."""
        with self.arrived:
            dataset = self.find(name)
            payloads, labels = [dataset.payloads[key] for key in keys], dataset.batch(keys).labels
        offsets = np.concatenate([[0], np.cumsum([len(payload) for payload in payloads])]).astype(np.int64)
        data: npt.NDArray[np.uint8] = np.frombuffer(b"".join(payloads), np.uint8)
        return Payloads(keys, labels, data, offsets, common_size(offsets))


class FakeStorageClient(FakeClient, StorageClient):
    """A StorageClient of a FakeStorage. This client can read datasets and delete samples, but not register or ingest datasets.

    Methods take the same arguments as the methods of `StorageClient`.
    """

    def __init__(self, storage: FakeStorage) -> None:
        self._storage = storage

    def _refuse(self, *arguments: Any, **options: Any) -> NoReturn:
        """Raise NotImplementedError, because a fake has no files and no catalogue."""
        raise NotImplementedError(
            "the fake has no such call; make datasets with FakeStorage.add_dataset and samples with FakeStorage.add_samples"
        )

    register_dataset = change_dataset = delete_dataset = ingest = _refuse
    scrub_dataset = forget_file = rebuild_dataset = offer_short_cut = _refuse

    def problems(self, name: str) -> list[FileProblem]:
        """Return the problems that a test has set for the dataset. Raises NotFoundError."""
        with self._storage.arrived:
            return list(self._storage.find(name).problems)

    def append_records(self, name: str, records: Sequence[NewRecord], identity: str = "") -> list[AppendedRecord]:
        """Append records, which become samples immediately. For each idempotency key, the first record counts. Raises: see `StorageClient`."""
        with self._storage.arrived:
            dataset, latest = self._storage.find(name, identity), time.time() + 86_400
            for record in records:
                if reason := why_not_taken(record, dataset.float_labels, 1 << 20, latest):
                    raise InvalidArgumentError(f"the record with the key '{record.key[:40]}' cannot be taken: {reason}")
            if reason := why_no_seconds(records, dataset.time_range):
                raise InvalidArgumentError(f"dataset '{name}': {reason}. None of the records of this call was appended")
            answers, new = dataset.judge(records)
            times = [int(time.time()) if record.timestamp is None else record.timestamp for record in new]
            missing = np.nan if dataset.float_labels else NO_LABEL
            labels = [missing if record.label is None else record.label for record in new]
            self._storage.add_samples(name, times, labels, [record.payload for record in new])
            return answers

    def set_labels(self, name: str, labels: Mapping[str, float], identity: str = "") -> list[AppendedRecord]:
        """Set labels of records, and push them to open streams. Raises: see `StorageClient`."""
        with self._storage.arrived:
            answers = self._storage.find(name, identity).set_labels(labels)
            self._storage.arrived.notify_all()
            return answers

    def new_labels(self, name: str, first: int, batch_size: int, identity: str = "") -> FakeNewLabels:
        """See `StorageClient.new_labels`. New labels are the labels that `set_labels` sets. Raises NotFoundError."""
        self._storage.find(name, identity)
        return FakeNewLabels(self._storage.arrived, partial(self._storage.find, name), first, batch_size)

    def list_datasets(self) -> list[DatasetInfo]:
        """Return all datasets by name."""
        with self._storage.arrived:
            return [self.dataset(name) for name in sorted(self._storage.datasets)]

    def dataset(self, name: str) -> DatasetInfo:
        """Describe a dataset; the counts omit deleted samples. Raises NotFoundError."""
        with self._storage.arrived:
            found = self._storage.find(name)
            return DatasetInfo(
                config=found.config,
                identity=found.identity,
                num_samples=len(found.timestamps) - len(found.deleted),
                num_files=1 if found.timestamps else 0,
                num_problems=len(found.problems),
                next_key=len(found.timestamps),
                min_timestamp=min(found.timestamps, default=None),
                max_timestamp=max(found.timestamps, default=None),
                num_deleted=len(found.deleted),
                float_labels=found.float_labels,
                schema=found.schema,
                num_labels=len(found.late),
                num_unlabelled=int((~has_label(found.batch(np.arange(len(found.timestamps))).labels)).sum()),
            )

    def count_samples(self, name: str, interval: Interval, end_key: int | None = None, identity: str = "") -> int:
        """Count the samples in `interval` with keys below `end_key`, without deleted samples. Raises NotFoundError."""
        return len(self._in_interval(name, interval, None, end_key, identity))

    def samples_in_interval(
        self,
        name: str,
        interval: Interval,
        batch_size: int,
        after: tuple[int, int] | None = None,
        end_key: int | None = None,
        identity: str = "",
        end_label: int | None = None,
    ) -> Iterator[SampleBatch]:
        """See `StorageClient.samples_in_interval`. The samples are read at the first `next`, and `batch_size` may be any number of at least 1."""
        keys = self._in_interval(name, interval, after, end_key, identity)
        for first in range(0, len(keys), batch_size):
            yield self._storage.find(name).batch(keys[first : first + batch_size], end_label)

    def _in_interval(
        self, name: str, interval: Interval, after: tuple[int, int] | None, end_key: int | None, identity: str
    ) -> Int64Array:
        with self._storage.arrived:
            dataset = self._storage.find(name, identity)
            times = enumerate(dataset.timestamps[:end_key])
            found = [(t, key) for key, t in times if t in interval and key not in dataset.deleted]
        return np.asarray([key for t, key in sorted(found) if after is None or (t, key) > after], np.int64)

    def new_samples(self, name: str, first_key: int, batch_size: int, identity: str = "") -> FakeNewSamples:
        """See `StorageClient.new_samples`. New samples are the samples that `FakeStorage.add_samples` adds. Raises NotFoundError."""
        self._storage.find(name, identity)
        return FakeNewSamples(self._storage.arrived, partial(self._storage.find, name), first_key, batch_size)

    def samples_by_key(self, name: str, keys: Int64Array, identity: str = "") -> SampleBatch:
        """Return labels and timestamps of `keys`, int64 (n,), in the order of `keys`. Raises NotFoundError if a key is unknown or deleted."""
        with self._storage.arrived:
            dataset = self._storage.find(name, identity)
            _refuse_unknown(name, dataset, keys)
            _refuse_missing(name, dataset, keys)
            return dataset.batch(np.asarray(keys, np.int64))

    def locate(self, name: str, keys: Int64Array) -> list[SamplePlace]:
        """Return a position in a file `fake` for each of `keys`, int64 (n,); the offset is the key. Raises NotFoundError: a key is unknown or
        deleted."""
        found, count = self.samples_by_key(name, keys), self._storage.payloads(name, keys)
        rows = zip(
            found.keys.tolist(), np.diff(count.offsets).tolist(), found.labels.tolist(), found.timestamps.tolist(), strict=True
        )
        return [SamplePlace(key, "fake", key, size, label, timestamp) for key, size, label, timestamp in rows]

    def delete_samples(self, name: str, keys: Int64Array, identity: str = "") -> int:
        """Delete the existing samples of `keys`. Returns the number of keys that exist or have existed."""
        with self._storage.arrived:
            dataset = self._storage.find(name, identity)
            existing = {int(key) for key in keys if 0 <= key < len(dataset.timestamps)}
            dataset.deleted |= existing
            return len(existing)

    def deleted_keys(self, name: str, identity: str = "") -> KeySet:
        """Return all deleted keys of a dataset. Raises NotFoundError."""
        with self._storage.arrived:
            return KeySet(np.asarray(sorted(self._storage.find(name, identity).deleted), np.int64))

    def check_column(self, name: str, column: str, identity: str = "") -> None:
        """Raise ConfigError if there are samples, but no sample has this column. Raises NotFoundError."""
        with self._storage.arrived:
            found = self._storage.find(name, identity)
            if found.timestamps and column not in found.columns:
                near = nearest(column, list(found.columns)) or "."
                raise ConfigError(
                    f"dataset '{name}' has no column '{column}' in its first and last samples{near} Correct the name of the column"
                )

    def column_names(self, name: str, identity: str = "") -> list[str]:
        """Return the names of the columns of a dataset. Raises NotFoundError."""
        with self._storage.arrived:
            found = self._storage.find(name, identity)
            return list(found.columns) if len(found.deleted) < len(found.timestamps) else []

    def column_values(self, name: str, keys: Int64Array, column: str, identity: str = "") -> Iterator[ColumnValues]:
        """See `StorageClient.column_values`. Returns all values at once."""
        with self._storage.arrived:
            found, encoder = self._storage.find(name, identity), ValueEncoder(column)
            _refuse_unknown(name, found, keys)
            values = found.columns.get(column, {})
            numbers = encoder.numbers([values.get(key) if found.has(key) else None for key in keys.tolist()])
        yield ColumnValues(encoder.values, numbers)


class FakePayloadClient(PayloadClient):
    """A PayloadClient of a FakeStorage. This client answers in batches of `batch_size` samples."""

    def __init__(self, storage: FakeStorage, batch_size: int = 1000) -> None:
        self._storage = storage
        self._batch_size = batch_size

    def close(self) -> None:
        """Do nothing, because there is no connection."""

    def schema(self, dataset: str) -> DatasetSchema | None:
        """See `PayloadClient.schema`."""
        return self._storage.client().dataset(dataset).schema

    def fetch(
        self,
        dataset: str,
        keys: Int64Array,
        on_missing: OnMissing = "raise",
        deadline_s: float | None = None,
        identity: str = "",
        *,
        with_bytes: bool = True,
    ) -> FakeFetch:
        """Return the answers. Errors, including errors of `before_fetch`, are raised when the answer is read; `deadline_s` has no effect."""
        if on_missing not in ("raise", "skip"):
            raise InvalidArgumentError(f"on_missing is 'raise' or 'skip', not {on_missing!r}")
        return FakeFetch(self._answers(dataset, np.asarray(keys, np.int64), on_missing, identity, with_bytes))

    def _answers(
        self, dataset: str, keys: Int64Array, on_missing: OnMissing, identity: str, with_bytes: bool
    ) -> Iterator[Payloads]:
        if self._storage.before_fetch is not None and with_bytes:
            self._storage.before_fetch(keys)
        for first in range(0, len(keys), self._batch_size):
            part = keys[first : first + self._batch_size]
            found = part[self._storage.present(dataset, part, on_missing, identity)]
            if len(found):
                payloads = self._storage.payloads(dataset, found)
                yield payloads if with_bytes else without_bytes(payloads)


def without_bytes(payloads: Payloads) -> Payloads:
    """Return the same samples with empty payloads."""
    return Payloads(payloads.keys, payloads.labels, np.empty(0, np.uint8), np.zeros(len(payloads) + 1, np.int64))


class FakeFetch(PayloadStream):
    """Answers of a FakePayloadClient."""

    def __init__(self, answers: Iterator[Payloads]) -> None:
        self._answers = answers
        self._cancelled = False

    def __next__(self) -> Payloads:
        if self._cancelled:
            raise CancelledError("the fetch was cancelled")
        return next(self._answers)

    def cancel(self) -> None:
        """Make the next answer raise CancelledError."""
        self._cancelled = True

    def close(self) -> None:
        """End the answers like `cancel`."""
        self.cancel()

    def __del__(self) -> None:
        """Do nothing, because there are no threads to stop."""


def _refuse_unknown(name: str, dataset: HeldDataset, keys: Int64Array) -> None:
    unknown = [int(key) for key in keys if not 0 <= key < len(dataset.timestamps)]
    if unknown:
        raise NotFoundError(f"dataset '{name}' never had samples with {len(unknown)} of the keys asked for: {unknown[:5]}")


def _refuse_missing(name: str, dataset: HeldDataset, keys: Int64Array) -> None:
    missing = [int(key) for key in keys if not dataset.has(int(key))]
    if missing:
        raise NotFoundError(f"dataset '{name}' has no samples with {len(missing)} of the keys asked for: {missing[:5]}")
