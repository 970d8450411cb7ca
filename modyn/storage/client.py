"""Typed client of the storage service's control plane, and the records that it returns. Payloads: `modyn.storage.payloads`."""

from __future__ import annotations

from collections.abc import Iterator

from modyn.config.system import DatasetConfig, Endpoint
from modyn.errors import NotFoundError, UnavailableError
from modyn.proto import common_pb2, storage_pb2, storage_pb2_grpc
from modyn.records import Int64Array, Interval, SampleBatch
from modyn.rpc.client import ServiceClient
from modyn.rpc.columns import batch_from_proto, items_per_message, keys_to_bytes
from modyn.rpc.retry import ResumingStream, Retrier, RetryPolicy
from modyn.rpc.wire import from_struct, to_struct
from modyn.storage.model.records import DatasetInfo, FileProblem, IngestProgress
from modyn.storage.read.locality import FileIdentity, ShortCutOffer

__all__ = ["DatasetInfo", "FileProblem", "IngestProgress", "NewSamples", "StorageClient"]

KEYS_PER_CALL = 131_072
"""Most keys in one request message (1 MiB): longer requests are split."""
RETRY_S = 30.0
"""For how long a broken stream is opened again without any progress before its error is raised."""

NewSamples = ResumingStream[SampleBatch, int]
"""The samples of a dataset as they arrive. `cancel` may be called from another thread: iteration then ends."""


class StorageClient(ServiceClient):
    """Calls of the storage service. Every method raises from `modyn.errors`: NotFoundError for an unknown dataset or key,
    UnavailableError when the service cannot be reached."""

    _Stub = storage_pb2_grpc.StorageStub
    _not_repeatable = frozenset({"DeleteDataset"})

    def __init__(self, endpoint: Endpoint, retry_s: float = RETRY_S, wait_s: float = 10.0) -> None:
        super().__init__(endpoint, wait_s)
        self._stream_retrier = Retrier(RetryPolicy(retry_s))
        self._keys_per_call = min(KEYS_PER_CALL, items_per_message(endpoint, 8))

    def register_dataset(self, config: DatasetConfig) -> DatasetInfo:
        """Makes the dataset known; a no-op if it is known with equal options, AlreadyExistsError if with others."""
        return info_from_proto(self._stub.RegisterDataset(spec_to_proto(config)))

    def list_datasets(self) -> list[DatasetInfo]:
        return [info_from_proto(dataset) for dataset in self._stub.ListDatasets(common_pb2.Empty()).datasets]

    def dataset(self, name: str) -> DatasetInfo:
        return info_from_proto(self._stub.GetDataset(storage_pb2.DatasetName(name=name)))

    def delete_dataset(self, name: str) -> None:
        """Forgets the index of the dataset. The user's files stay."""
        is_repeated = False

        def delete() -> None:
            nonlocal is_repeated
            try:
                self._stub.DeleteDataset(storage_pb2.DatasetName(name=name))
            except NotFoundError:
                if not is_repeated:
                    raise
                # The call before it has deleted the dataset, and its answer was lost.
            except UnavailableError:
                is_repeated = True
                raise

        self._retrier.call(delete)

    def ingest(self, name: str) -> Iterator[IngestProgress]:
        """Indexes what is new in the dataset's folder, now. The last message has `finished`."""
        for progress in self._stub.Ingest(storage_pb2.DatasetName(name=name)):
            yield IngestProgress(
                progress.files_seen, progress.files_indexed, progress.samples_indexed, progress.problems, progress.finished
            )

    def problems(self, name: str) -> list[FileProblem]:
        reply = self._stub.ListProblems(storage_pb2.DatasetName(name=name))
        return [FileProblem(problem.path, problem.reason, problem.found_at) for problem in reply.problems]

    def count_samples(self, name: str, interval: Interval) -> int:
        """Samples with a timestamp in [start, end), without deleted ones."""
        reply = self._stub.CountSamples(storage_pb2.IntervalRequest(dataset=name, interval=interval_to_proto(interval)))
        return int(reply.num_samples)

    def samples_in_interval(
        self, name: str, interval: Interval, batch_size: int, after: tuple[int, int] | None = None
    ) -> Iterator[SampleBatch]:
        """Samples of [start, end) in the order (timestamp, key), only those after the (timestamp, key) `after`.

        A stream that breaks is opened again behind the last sample received, for at most `retry_s` without progress.
        """

        def open_after(last: tuple[int, int] | None) -> Iterator[common_pb2.SampleColumns]:
            request = storage_pb2.IntervalRequest(dataset=name, interval=interval_to_proto(interval), batch_size=batch_size)
            if last is not None:
                request.resume, request.after_timestamp, request.after_key = True, *last
            columns: Iterator[common_pb2.SampleColumns] = self._stub.SamplesInInterval(request)
            return columns

        def last_of(batch: SampleBatch) -> tuple[int, int] | None:
            return int(batch.timestamps[-1]), int(batch.keys[-1])

        return ResumingStream(open_after, after, last_of, self._stream_retrier, batch_from_proto)

    def new_samples(self, name: str, first_key: int, batch_size: int) -> NewSamples:
        """Samples from key `first_key` on in the order of arrival; waits for new ones until cancelled."""

        def open_at(key: int) -> Iterator[common_pb2.SampleColumns]:
            request = storage_pb2.NewSamplesRequest(dataset=name, first_key=key, batch_size=batch_size)
            columns: Iterator[common_pb2.SampleColumns] = self._stub.NewSamples(request)
            return columns

        return ResumingStream(open_at, first_key, lambda batch: int(batch.keys[-1]) + 1, self._stream_retrier, batch_from_proto)

    def samples_by_key(self, name: str, keys: Int64Array) -> SampleBatch:
        """Labels and timestamps of the keys, in the order asked. NotFoundError if one does not exist or was deleted."""
        batches: list[SampleBatch] = []
        for first in range(0, len(keys), self._keys_per_call):
            request = storage_pb2.KeysRequest(dataset=name, keys=keys_to_bytes(keys[first : first + self._keys_per_call]))
            batches.extend(batch_from_proto(columns) for columns in self._stub.SamplesByKey(request))
        return SampleBatch.concatenate(batches)

    def offer_short_cut(self, name: str) -> ShortCutOffer:
        """Where a reader on storage's machine finds the dataset, and by what it knows it; see `modyn.storage.read.locality`."""
        reply = self._stub.OfferShortCut(storage_pb2.DatasetName(name=name))
        files = tuple(FileIdentity(file.path, file.device, file.inode) for file in reply.files)
        return ShortCutOffer(reply.refused, reply.folder, reply.nonce, reply.kernel, files)

    def delete_samples(self, name: str, keys: Int64Array) -> int:
        """Deletes these samples for good; the number of those that existed. Their keys are never used again."""
        deleted = 0
        for first in range(0, len(keys), self._keys_per_call):
            request = storage_pb2.KeysRequest(dataset=name, keys=keys_to_bytes(keys[first : first + self._keys_per_call]))
            deleted += int(self._stub.DeleteSamples(request).num_deleted)
        return deleted


def spec_to_proto(config: DatasetConfig) -> storage_pb2.DatasetSpec:
    return storage_pb2.DatasetSpec(
        name=config.name,
        base_path=str(config.base_path),
        file_wrapper=config.file_wrapper,
        file_wrapper_config=to_struct(config.file_wrapper_config),
        filesystem_wrapper=config.filesystem_wrapper,
        timestamp_source=config.timestamp_source,
        watch=config.watch,
    )


def spec_from_proto(spec: storage_pb2.DatasetSpec) -> DatasetConfig:
    """Fields that were left empty get their defaults."""
    fields = {
        "name": spec.name,
        "base_path": spec.base_path,
        "file_wrapper": spec.file_wrapper,
        "file_wrapper_config": from_struct(spec.file_wrapper_config),
        "filesystem_wrapper": spec.filesystem_wrapper,
        "timestamp_source": spec.timestamp_source,
    }
    return DatasetConfig.model_validate({name: value for name, value in fields.items() if value} | {"watch": spec.watch})


def info_from_proto(dataset: storage_pb2.Dataset) -> DatasetInfo:
    indexed = dataset.next_key > 0
    return DatasetInfo(
        config=spec_from_proto(dataset.spec),
        num_samples=dataset.num_samples,
        num_files=dataset.num_files,
        num_problems=dataset.num_problems,
        next_key=dataset.next_key,
        min_timestamp=dataset.min_timestamp if indexed else None,
        max_timestamp=dataset.max_timestamp if indexed else None,
        num_deleted=dataset.num_deleted,
        float_labels=dataset.float_labels,
    )


def interval_to_proto(interval: Interval) -> common_pb2.Interval:
    return common_pb2.Interval(start=interval.start, end=interval.end)
