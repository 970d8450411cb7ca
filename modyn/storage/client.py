"""Typed client of the storage service's control plane, and the records that it returns. For payloads see `modyn.storage.payloads`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from modyn._core import KeySet
from modyn.config.dataset import DatasetConfig
from modyn.config.system_sections.endpoint import Endpoint
from modyn.errors import InvalidArgumentError, NotFoundError, UnavailableError
from modyn.proto import common_pb2, storage_pb2, storage_pb2_grpc
from modyn.records import DeletedSamples, Int64Array, Interval, SampleBatch
from modyn.rpc.arrays import batch_from_proto, items_per_message, keys_to_bytes
from modyn.rpc.client import ServiceClient
from modyn.rpc.retry import ResumingStream, Retrier, RetryPolicy
from modyn.rpc.wire import from_message, to_message
from modyn.storage.model.dataset_records import (
    MOST_RECORDS,
    AppendedRecord,
    ColumnValues,
    DatasetInfo,
    FileProblem,
    IngestProgress,
    LateLabelBatch,
    NewRecord,
    SamplePlace,
    ScrubProgress,
)
from modyn.storage.model.schema import DatasetSchema, LackingFile, SchemaColumn, listed
from modyn.storage.read.locality import ShortCutOffer
from modyn.storage.wire import (
    appended_from_proto,
    column_from_proto,
    info_from_proto,
    labels_to_proto,
    late_labels_from_proto,
    place_from_proto,
    record_to_proto,
    spec_to_proto,
)

__all__ = [
    "MOST_RECORDS",
    "AppendedRecord",
    "ColumnValues",
    "DatasetInfo",
    "DatasetSchema",
    "FileProblem",
    "IngestProgress",
    "LackingFile",
    "LateLabelBatch",
    "NewLabels",
    "NewRecord",
    "NewSamples",
    "SamplePlace",
    "SchemaColumn",
    "ScrubProgress",
    "StorageClient",
    "listed",
]

KEYS_PER_CALL = 131_072
"""Largest number of keys in one request message (1 MiB). Longer requests are split."""
_FRAME_BYTES = 16
"""Number of bytes that a record takes in a message in addition to its payload."""
RETRY_S = 30.0
"""Seconds without progress for which a broken stream is opened again and again. After this time, the error of the stream is raised."""

WHOLE_INDEX_DEADLINE_S = 3600.0
"""Deadline of a rebuild, which reads the whole index and a part of each data file, and of `forget_file`."""
SCRUB_DEADLINE_S = 7 * 24 * 3600.0
"""Deadline of a scrub, which reads all data files."""
INGEST_DEADLINE_S = 24 * 3600.0
"""Deadline of an ingestion, which ends when all files of the folder are indexed."""

NewSamples = ResumingStream[SampleBatch, int]
"""The samples of a dataset as they arrive. `cancel` may be called from another thread: iteration then ends."""
NewLabels = ResumingStream[LateLabelBatch, int]
"""Late labels as they arrive, with the same `cancel` as `NewSamples`."""


class StorageClient(ServiceClient):
    """Client of the storage service. Every method raises errors of `modyn.errors`: NotFoundError for an unknown dataset or key, UnavailableError if
    the service cannot be reached. `name` names a dataset. `identity` is the identity of the registration, as in `DatasetInfo`; empty: any
    registration. If the name now belongs to another registration, NotFoundError is raised.
    """

    _Stub = storage_pb2_grpc.StorageStub
    _not_repeatable = frozenset({"DeleteDataset"})

    def __init__(self, endpoint: Endpoint, retry_s: float = RETRY_S, wait_s: float = 10.0) -> None:
        """Args: retry_s: seconds without progress for which a broken stream is opened again. wait_s: seconds for which other calls are repeated."""
        super().__init__(endpoint, wait_s)
        self._stream_retrier = Retrier(RetryPolicy(retry_s))
        self._most_bytes = items_per_message(endpoint, 1)
        self._append_bytes = self._most_bytes // 2
        self._keys_per_call = min(KEYS_PER_CALL, items_per_message(endpoint, 8))

    def register_dataset(self, config: DatasetConfig) -> DatasetInfo:
        """Register a dataset. If the dataset is registered with equal options, nothing changes.

        Raises: AlreadyExistsError: the dataset is registered with other options. ConfigError, InvalidArgumentError, NotFoundError: `config` cannot be
        used.
        """
        return info_from_proto(self._stub.RegisterDataset(spec_to_proto(config)))

    def change_dataset(self, config: DatasetConfig) -> DatasetInfo:
        """Change the options of a dataset for later indexing. Raises InvalidArgumentError if the options would change indexed samples."""
        return info_from_proto(self._stub.ChangeDataset(spec_to_proto(config)))

    def list_datasets(self) -> list[DatasetInfo]:
        """Return all registered datasets that can be opened, by name. The records have no schemas."""
        return [info_from_proto(dataset) for dataset in self._stub.ListDatasets(common_pb2.Empty()).datasets]

    def dataset(self, name: str) -> DatasetInfo:
        """Return the registration of a dataset and the extent of its index."""
        return info_from_proto(self._stub.GetDataset(storage_pb2.DatasetName(name=name)))

    def delete_dataset(self, name: str) -> None:
        """Remove the index of the dataset. The user's files stay."""
        is_repeated = False

        def delete() -> None:
            nonlocal is_repeated
            try:
                self._stub.DeleteDataset(storage_pb2.DatasetName(name=name))
            except NotFoundError:
                if not is_repeated:
                    raise
                # The first call has deleted the dataset, and its answer was lost.
            except UnavailableError:
                is_repeated = True
                raise

        self._retrier.call(delete)

    def ingest(self, name: str) -> Iterator[IngestProgress]:
        """Index the new data in the dataset's folder now, and yield progress. The last record has `finished`. A broken stream is not opened again."""
        for progress in self._stub.Ingest(storage_pb2.DatasetName(name=name), timeout=INGEST_DEADLINE_S):
            yield from_message(progress, IngestProgress)

    def scrub_dataset(self, name: str, progress: Callable[[ScrubProgress], None] | None = None) -> list[FileProblem]:
        """Read all files of the dataset's index, and all indexed bytes of its data files. Return the files that do not match their checksums.

        Args: progress: called in this thread, a few times a second.
        """
        problems: list[FileProblem] = []
        for message in self._stub.ScrubDataset(storage_pb2.DatasetName(name=name), timeout=SCRUB_DEADLINE_S):
            step = from_message(message, ScrubProgress)
            problems += step.problems
            if progress is not None:
                progress(step)
        return problems

    def forget_file(self, name: str, path: str) -> DeletedSamples:
        """Delete the samples of a data file, and return the number of deleted samples. The next `ingest` adds the samples that the file then has,
        under new keys.

        Args: path: full path, or path in the dataset's folder.
        Raises: NotFoundError: the file is not indexed, or is missing. DataError: the present content of the file cannot be used; nothing is deleted.
        """
        request = storage_pb2.DataFile(dataset=name, path=path)
        return from_message(self._stub.ForgetFile(request, timeout=WHOLE_INDEX_DEADLINE_S), DeletedSamples)

    def rebuild_dataset(self, name: str) -> DatasetInfo:
        """Add the rows of the dataset that a restored, older database lacks. The rows come from the index.

        Raises: ConflictError: the database is not older.
        """
        return info_from_proto(self._stub.RebuildDataset(storage_pb2.DatasetName(name=name), timeout=WHOLE_INDEX_DEADLINE_S))

    def append_records(self, name: str, records: Sequence[NewRecord], identity: str = "") -> list[AppendedRecord]:
        """Append records to a dataset of records. Returns one answer for each record, in order. Answered records are durable, and become samples
        soon. Many records are sent in several calls. Each call appends all of its records or none. After an error or a lost answer, repeat the
        call with the same keys: the answers then mark the appended records as duplicates.

        Raises: InvalidArgumentError: a record is not valid, or the dataset is made of files. UnavailableError: the disk of storage cannot be
        written to.
        """
        appended: list[AppendedRecord] = []
        for request in self._append_requests(name, records, identity):
            appended += appended_from_proto(self._stub.AppendRecords(request))
        return appended

    def set_labels(self, name: str, labels: Mapping[str, float], identity: str = "") -> list[AppendedRecord]:
        """Set the labels of records that were appended without a label. Returns one answer for each label, in order. A record keeps its first label:
        the answer for a further label has `is_duplicate`, and `differs` if the labels are not equal. So the call may be repeated. Many labels are
        sent in several calls. Each call sets all of its labels or none.

        Args: labels: labels by the idempotency keys of the records.
        Raises: NotFoundError: there is no record with one of the keys. InvalidArgumentError: a label is not allowed, or the dataset is made of files.
        """
        answers, left = list[AppendedRecord](), iter(labels.items())
        while part := dict(islice(left, MOST_RECORDS)):
            answers += appended_from_proto(self._stub.SetLabels(labels_to_proto(name, part, identity)))
        return answers

    def new_labels(self, name: str, first: int, batch_size: int, identity: str = "") -> NewLabels:
        """Yield late labels from number `first` on, in the order of their arrival, and wait for new labels until cancelled."""

        def open_at(number: int) -> Any:
            request = storage_pb2.NewLabelsRequest(dataset=name, identity=identity, first=number, batch_size=batch_size)
            return self._stub.NewLabels(request)

        return ResumingStream(open_at, first, lambda batch: batch.end, self._stream_retrier, late_labels_from_proto)

    def _append_requests(self, name: str, records: Sequence[NewRecord], identity: str) -> Iterator[storage_pb2.AppendRequest]:
        request, num_bytes = storage_pb2.AppendRequest(dataset=name, identity=identity), 0
        for record in records:
            message = record_to_proto(record)
            # `ByteSize` is the exact size of the record. In the request, the frame of the field is added.
            size = message.ByteSize() + _FRAME_BYTES
            if size > self._most_bytes:
                raise InvalidArgumentError(
                    f"the record with the key '{record.key}' has {size:,} bytes, and a message to storage at most {self._most_bytes:,}; store "
                    "what is large elsewhere, or raise storage.max_message_bytes and storage.records.max_bytes in the system file"
                )
            if len(request.records) == MOST_RECORDS or (request.records and num_bytes + size > self._append_bytes):
                yield request
                request, num_bytes = storage_pb2.AppendRequest(dataset=name, identity=identity), 0
            request.records.append(message)
            num_bytes += size
        # A call without records still checks that the dataset exists.
        yield request

    def problems(self, name: str) -> list[FileProblem]:
        """Return the files of the dataset that were set aside, newest problem first."""
        reply = self._stub.ListProblems(storage_pb2.DatasetName(name=name))
        return [from_message(problem, FileProblem) for problem in reply.problems]

    def count_samples(self, name: str, interval: Interval, end_key: int | None = None, identity: str = "") -> int:
        """Return the number of samples of dataset `name` with a timestamp in [start, end), without deleted samples. Raises: NotFoundError.

        Args: end_key: only samples with smaller keys.
        """
        wanted = to_message(interval, common_pb2.Interval)
        request = storage_pb2.IntervalRequest(dataset=name, identity=identity, interval=wanted, end_key=end_key)
        return int(self._stub.CountSamples(request).num_samples)

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
        """Yield the samples of [start, end) in the order (timestamp, key).

        Args: interval: interval of timestamps, in seconds. batch_size: largest number of samples in a batch, 1 to 1,000,000. after: only samples
        after this (timestamp, key). end_key: only samples with smaller keys, which existed when `end_key` was the dataset's next key. end_label:
        use only the first `end_label` late labels (`num_labels` of the dataset at that time).

        A stream that breaks is opened again after the last received sample, for at most `retry_s` seconds without progress.
        """

        wanted = to_message(interval, common_pb2.Interval)

        def open_after(last: tuple[int, int] | None) -> Any:
            request = storage_pb2.IntervalRequest(
                dataset=name, identity=identity, interval=wanted, batch_size=batch_size, end_key=end_key, end_label=end_label
            )
            if last is not None:
                request.resume, request.after_timestamp, request.after_key = True, *last
            return self._stub.SamplesInInterval(request)

        def last_of(batch: SampleBatch) -> tuple[int, int] | None:
            return int(batch.timestamps[-1]), int(batch.keys[-1])

        return ResumingStream(open_after, after, last_of, self._stream_retrier, batch_from_proto)

    def new_samples(self, name: str, first_key: int, batch_size: int, identity: str = "") -> NewSamples:
        """Yield samples from key `first_key` on in the order of arrival, and wait for new samples until cancelled.

        Args: batch_size: largest number of samples in a batch, 1 to 1,000,000. A batch has fewer samples if no more have arrived.
        """

        def open_at(key: int) -> Any:
            return self._stub.NewSamples(
                storage_pb2.NewSamplesRequest(dataset=name, identity=identity, first_key=key, batch_size=batch_size)
            )

        return ResumingStream(open_at, first_key, lambda batch: int(batch.keys[-1]) + 1, self._stream_retrier, batch_from_proto)

    def samples_by_key(self, name: str, keys: Int64Array, identity: str = "") -> SampleBatch:
        """Return labels and timestamps of `keys`, int64 (n,), in the given order. Raises NotFoundError if a key does not exist or was deleted."""
        requests = self._key_requests(name, keys, identity)
        return SampleBatch.concatenate([batch_from_proto(c) for request in requests for c in self._stub.SamplesByKey(request)])

    def locate(self, name: str, keys: Int64Array) -> list[SamplePlace]:
        """Return the locations of the samples `keys`, int64 (n,), in the given order. Raises NotFoundError if a key does not exist or was deleted."""
        requests = self._key_requests(name, keys, "")
        return [place_from_proto(place) for request in requests for place in self._stub.LocateSamples(request).places]

    def offer_short_cut(self, name: str) -> ShortCutOffer:
        """Return the data with which a reader on storage's machine reads the dataset without the service; see `modyn.storage.read.locality`."""
        return from_message(self._stub.OfferShortCut(storage_pb2.DatasetName(name=name)), ShortCutOffer)

    def delete_samples(self, name: str, keys: Int64Array, identity: str = "") -> int:
        """Delete the samples `keys`, int64 (n,), permanently. Returns the number of keys that exist or existed. A repeated call returns the same
        number. Deleted keys are never reused.
        """
        # The server counts distinct keys. A key in two requests would be counted twice.
        requests = self._key_requests(name, np.unique(keys), identity)
        return sum(int(self._stub.DeleteSamples(request).num_deleted) for request in requests)

    def deleted_keys(self, name: str, identity: str = "") -> KeySet:
        """Return all deleted keys. The number of deleted keys identifies the version of the set, because deletions are permanent.

        Raises: NotFoundError: there is no dataset with this name and identity.
        """
        request = storage_pb2.RegisteredDataset(dataset=name, identity=identity)
        # All parts must belong to one snapshot, so after a failure all parts are read again.
        return KeySet.parsed(self._retrier.call(lambda: b"".join(part.content for part in self._stub.DeletedKeys(request))))

    def check_column(self, name: str, column: str, identity: str = "") -> None:
        """Check that the samples of a dataset have a column of this name. Only the dataset's first and last samples are read.

        Raises: ConfigError: the column is missing (the message names the most similar column), or the format has no columns.
        """
        self._stub.CheckColumn(storage_pb2.ColumnRequest(dataset=name, column=column, identity=identity))

    def column_names(self, name: str, identity: str = "") -> list[str]:
        """Return the names of the columns that the first and last samples of a dataset have. For CSV files, the names are the numbers of a row's
        fields, from "0". Without samples, the list is empty.

        Raises: ConfigError: the format has no columns. DataError: a file cannot be read.
        """
        return list(self._stub.ListColumns(storage_pb2.RegisteredDataset(dataset=name, identity=identity)).names)

    def column_values(self, name: str, keys: Int64Array, column: str, identity: str = "") -> Iterator[ColumnValues]:
        """Yield the values of a column for the samples `keys`, int64 (n,), in the given order and in chunks. Deleted samples have no value. A broken
        stream is opened again.

        Raises: ConfigError: the format of the dataset has no columns, or the values of this column are not short texts, numbers or times. DataError:
        a file cannot be read. NotFoundError: the dataset never had one of the keys.
        """
        for first in range(0, len(keys), self._keys_per_call):
            packed = keys_to_bytes(keys[first : first + self._keys_per_call])
            request = storage_pb2.ColumnValuesRequest(dataset=name, column=column, keys=packed, identity=identity)
            # All parts of a request are collected before one is yielded, so a retry yields no part twice.
            yield from self._stream_retrier.call(partial(self._parts_of_column, request))

    def _parts_of_column(self, request: storage_pb2.ColumnValuesRequest) -> list[ColumnValues]:
        return [column_from_proto(part) for part in self._stub.ColumnValues(request)]

    def _key_requests(self, name: str, keys: Int64Array, identity: str) -> Iterator[storage_pb2.KeysRequest]:
        for first in range(0, len(keys), self._keys_per_call):
            packed = keys_to_bytes(keys[first : first + self._keys_per_call])
            yield storage_pb2.KeysRequest(dataset=name, identity=identity, keys=packed)
