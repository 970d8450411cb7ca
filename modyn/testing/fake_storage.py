"""Storage in memory: the same calls as the real clients, for tests of what stands above storage.

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

import numpy as np
import numpy.typing as npt

from modyn._core import KeySet
from modyn.config.buckets import RECORDS
from modyn.config.dataset import DatasetConfig
from modyn.errors import CancelledError, ConfigError, InvalidArgumentError, NotFoundError
from modyn.records import NO_LABEL, DeletedSamples, Int64Array, Interval, LabelArray, SampleBatch, has_label
from modyn.registry import nearest
from modyn.storage.client import (
    AppendedRecord,
    ColumnValues,
    DatasetInfo,
    DatasetSchema,
    FileProblem,
    IngestProgress,
    NewRecord,
    SamplePlace,
    ScrubProgress,
    StorageClient,
)
from modyn.storage.model.samples import Payloads, common_size
from modyn.storage.payloads import OnMissing, PayloadClient, PayloadStream
from modyn.storage.read.column_values import ValueEncoder
from modyn.storage.read.locality import ShortCutOffer
from modyn.storage.records.intake import why_no_seconds, why_not_taken
from modyn.testing.fake_streams import FakeNewLabels, FakeNewSamples
from modyn.testing.fakes import FakeClient
from modyn.testing.held_dataset import HeldDataset

_NOT_FAKED = "the fake has no such call; make datasets with FakeStorage.add_dataset and samples with FakeStorage.add_samples"


class FakeStorage:
    """What the storage service would hold. `before_fetch`, if set, is called with the keys of each payload request and may raise."""

    def __init__(self) -> None:
        # Guards all datasets, and is notified when samples arrive and when a stream is cancelled. Reentrant: methods call each other.
        self.arrived = threading.Condition(threading.RLock())
        self.datasets: dict[str, HeldDataset] = {}
        self.before_fetch: Callable[[Int64Array], None] | None = None

    def client(self) -> FakeStorageClient:
        """A new client for metadata."""
        return FakeStorageClient(self)

    def payload_client(self) -> FakePayloadClient:
        """A new client for payloads."""
        return FakePayloadClient(self)

    def add_dataset(self, name: str, float_labels: bool = False, *, records: bool = False) -> None:
        """Register a dataset without samples, in place of any of that name, whose identity is another one.

        Args: float_labels: whether its labels are float64; otherwise int64. records: clients append its samples as records.
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
        """Add samples, with labels 0 and payloads `<key>` unless given, and push them to open streams. Returns their keys, int64 (n,).

        Args: timestamps: n ints. labels: n numbers. payloads: n byte strings. columns: n values by name; None: a sample has none.
        Raises: NotFoundError: there is no such dataset. ValueError: labels or payloads differ in number from `timestamps`.
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
        """Return what is held of a dataset. Raises NotFoundError, also if its identity is another one."""
        if name not in self.datasets:
            hint = nearest(name, list(self.datasets)) or ";"
            raise NotFoundError(f"there is no dataset '{name}'{hint} register it with `modyn data register`")
        if identity not in ("", found := self.datasets[name].identity):
            raise NotFoundError(
                f"dataset '{name}' was deleted, and another was registered under its name: {identity} is now {found}"
            )
        return self.datasets[name]

    def present(self, name: str, keys: Int64Array, on_missing: OnMissing, identity: str = "") -> Int64Array:
        """Positions of the keys that there are samples for: int64 (n,).

        Args: keys: int64 (n,). on_missing, identity: as for `PayloadClient.fetch`.
        Raises: NotFoundError: a key was never given out, or, with on_missing "raise", was deleted.
        """
        with self.arrived:
            dataset = self.find(name, identity)
            _refuse_unknown(name, dataset, keys)
            if on_missing == "raise":
                _refuse_missing(name, dataset, keys)
            return np.flatnonzero(np.asarray([dataset.has(int(key)) for key in keys], bool))

    def payloads(self, name: str, keys: Int64Array) -> Payloads:
        """Payloads and labels of `keys`, int64 (n,), which must exist (see `present`), in that order."""
        with self.arrived:
            dataset = self.find(name)
            payloads, labels = [dataset.payloads[key] for key in keys], dataset.batch(keys).labels
        offsets = np.concatenate([[0], np.cumsum([len(payload) for payload in payloads])]).astype(np.int64)
        data: npt.NDArray[np.uint8] = np.frombuffer(b"".join(payloads), np.uint8)
        return Payloads(keys, labels, data, offsets, common_size(offsets))


class FakeStorageClient(FakeClient, StorageClient):
    """A StorageClient whose service is a FakeStorage: datasets are read, and samples deleted, but nothing is registered or ingested.

    Methods take the arguments of those of `StorageClient`.
    """

    def __init__(self, storage: FakeStorage) -> None:
        self._storage = storage

    def register_dataset(self, config: DatasetConfig) -> DatasetInfo:
        """Raises NotImplementedError."""
        raise NotImplementedError(_NOT_FAKED)

    def change_dataset(self, config: DatasetConfig) -> DatasetInfo:
        """Raises NotImplementedError."""
        raise NotImplementedError(_NOT_FAKED)

    def delete_dataset(self, name: str) -> None:
        """Raises NotImplementedError."""
        raise NotImplementedError(_NOT_FAKED)

    def ingest(self, name: str) -> Iterator[IngestProgress]:
        """Raises NotImplementedError."""
        raise NotImplementedError(_NOT_FAKED)

    def scrub_dataset(self, name: str, progress: Callable[[ScrubProgress], None] | None = None) -> list[FileProblem]:
        """Not faked: there are no files."""
        raise NotImplementedError(_NOT_FAKED)

    def forget_file(self, name: str, path: str) -> DeletedSamples:
        """Not faked: there are no files."""
        raise NotImplementedError(_NOT_FAKED)

    def rebuild_dataset(self, name: str) -> DatasetInfo:
        """Not faked: there is no catalogue."""
        raise NotImplementedError(_NOT_FAKED)

    def problems(self, name: str) -> list[FileProblem]:
        """Return the problems that a test gave the dataset. Raises NotFoundError."""
        with self._storage.arrived:
            return list(self._storage.find(name).problems)

    def offer_short_cut(self, name: str) -> ShortCutOffer:
        """Raises NotImplementedError: a reader of the fake gets payloads from `FakePayloadClient`."""
        raise NotImplementedError(_NOT_FAKED)

    def append_records(self, name: str, records: Sequence[NewRecord], identity: str = "") -> list[AppendedRecord]:
        """Append records, of which the first one with an idempotency key counts; they are samples at once. Raises as the client."""
        with self._storage.arrived:
            dataset, latest = self._storage.find(name, identity), time.time() + 86_400
            for record in records:
                if reason := why_not_taken(record, dataset.float_labels, 1 << 20, latest):
                    raise InvalidArgumentError(f"the record with the key '{record.key[:40]}' cannot be taken: {reason}")
            if reason := why_no_seconds(records, dataset.time_range):
                raise InvalidArgumentError(f"dataset '{name}': {reason}. None of the records of this call was appended")
            answers, new = dataset.judged(records)
            times = [int(time.time()) if record.timestamp is None else record.timestamp for record in new]
            missing = np.nan if dataset.float_labels else NO_LABEL
            labels = [missing if record.label is None else record.label for record in new]
            self._storage.add_samples(name, times, labels, [record.payload for record in new])
            return answers

    def set_labels(self, name: str, labels: Mapping[str, float], identity: str = "") -> list[AppendedRecord]:
        """Give records labels, and push them to open streams. Raises as the client."""
        with self._storage.arrived:
            answers = self._storage.find(name, identity).set_labels(labels)
            self._storage.arrived.notify_all()
            return answers

    def new_labels(self, name: str, first: int, batch_size: int, identity: str = "") -> FakeNewLabels:
        """See `StorageClient.new_labels`; new labels are those that `set_labels` sets. Raises NotFoundError."""
        self._storage.find(name, identity)
        return FakeNewLabels(self._storage.arrived, partial(self._storage.find, name), first, batch_size)

    def list_datasets(self) -> list[DatasetInfo]:
        """All datasets by name."""
        with self._storage.arrived:
            return [self.dataset(name) for name in sorted(self._storage.datasets)]

    def dataset(self, name: str) -> DatasetInfo:
        """A dataset without deleted samples in its counts. Raises NotFoundError."""
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
        """Count the samples in `interval` with keys below `end_key`, deleted ones left out. Raises NotFoundError."""
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
        """As `StorageClient.samples_in_interval`, of what is there at the first `next`; any `batch_size` of at least 1."""
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
        """As `StorageClient.new_samples`; new ones are those that `FakeStorage.add_samples` adds. Raises NotFoundError."""
        self._storage.find(name, identity)
        return FakeNewSamples(self._storage.arrived, partial(self._storage.find, name), first_key, batch_size)

    def samples_by_key(self, name: str, keys: Int64Array, identity: str = "") -> SampleBatch:
        """Return labels and timestamps of `keys`, int64 (n,), in the order asked. Raises NotFoundError if one is unknown or deleted."""
        with self._storage.arrived:
            dataset = self._storage.find(name, identity)
            _refuse_unknown(name, dataset, keys)
            _refuse_missing(name, dataset, keys)
            return dataset.batch(np.asarray(keys, np.int64))

    def locate(self, name: str, keys: Int64Array) -> list[SamplePlace]:
        """Place each of `keys`, int64 (n,), at its key in a file `fake`. Raises NotFoundError if one is unknown or deleted."""
        found, count = self.samples_by_key(name, keys), self._storage.payloads(name, keys)
        rows = zip(
            found.keys.tolist(), np.diff(count.offsets).tolist(), found.labels.tolist(), found.timestamps.tolist(), strict=True
        )
        return [SamplePlace(key, "fake", key, size, label, timestamp) for key, size, label, timestamp in rows]

    def delete_samples(self, name: str, keys: Int64Array, identity: str = "") -> int:
        """Delete those of `keys` that there are or were; return how many."""
        with self._storage.arrived:
            dataset = self._storage.find(name, identity)
            existing = {int(key) for key in keys if 0 <= key < len(dataset.timestamps)}
            dataset.deleted |= existing
            return len(existing)

    def deleted_keys(self, name: str, identity: str = "") -> KeySet:
        """All deleted keys of a dataset. Raises NotFoundError."""
        with self._storage.arrived:
            return KeySet(np.asarray(sorted(self._storage.find(name, identity).deleted), np.int64))

    def check_column(self, name: str, column: str, identity: str = "") -> None:
        """Raises ConfigError if there are samples, none of which was added with this column. Raises NotFoundError."""
        with self._storage.arrived:
            found = self._storage.find(name, identity)
            if found.timestamps and column not in found.columns:
                near = nearest(column, list(found.columns)) or "."
                raise ConfigError(
                    f"dataset '{name}' has no column '{column}' in its first and last samples{near} Correct the name of the column"
                )

    def column_values(self, name: str, keys: Int64Array, column: str, identity: str = "") -> Iterator[ColumnValues]:
        """As `StorageClient.column_values`, all at once."""
        with self._storage.arrived:
            found, encoder = self._storage.find(name, identity), ValueEncoder(column)
            _refuse_unknown(name, found, keys)
            values = found.columns.get(column, {})
            numbers = encoder.numbers([values.get(key) if found.has(key) else None for key in keys.tolist()])
        yield ColumnValues(encoder.values, numbers)


class FakePayloadClient(PayloadClient):
    """A PayloadClient whose server is a FakeStorage. Answers in batches of `batch_size` samples."""

    def __init__(self, storage: FakeStorage, batch_size: int = 1000) -> None:
        self._storage = storage
        self._batch_size = batch_size

    def close(self) -> None:
        """Without effect: there is no connection."""

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
        """Errors, also those of `before_fetch`, are raised by the answers and not here; `deadline_s` has no effect."""
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
    """The same samples, with payloads of no bytes."""
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
        """The same as `cancel`."""
        self.cancel()

    def __del__(self) -> None:
        """There are no threads to end."""


def _refuse_unknown(name: str, dataset: HeldDataset, keys: Int64Array) -> None:
    unknown = [int(key) for key in keys if not 0 <= key < len(dataset.timestamps)]
    if unknown:
        raise NotFoundError(f"dataset '{name}' never had samples with {len(unknown)} of the keys asked for: {unknown[:5]}")


def _refuse_missing(name: str, dataset: HeldDataset, keys: Int64Array) -> None:
    missing = [int(key) for key in keys if not dataset.has(int(key))]
    if missing:
        raise NotFoundError(f"dataset '{name}' has no samples with {len(missing)} of the keys asked for: {missing[:5]}")
