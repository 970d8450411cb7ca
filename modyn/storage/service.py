"""The gRPC servicer of storage, which decodes requests, calls the dataset store and encodes the answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import grpc

from modyn.config.system import SystemConfig
from modyn.config.system_sections.endpoint import Endpoint
from modyn.errors import InvalidArgumentError, SecurityError
from modyn.proto import common_pb2, storage_pb2, storage_pb2_grpc
from modyn.records import Interval, SampleBatch
from modyn.rpc.arrays import batch_to_proto, items_per_message, keys_from_bytes
from modyn.rpc.server import Registration, ServiceContext
from modyn.rpc.wire import from_message, plugins_to_proto, to_message
from modyn.state_folders import prepare_run_dir
from modyn.storage.catalogue.catalogue import Catalogue
from modyn.storage.datasets import DatasetStore
from modyn.storage.flight.server import PayloadServer, ServerLimits
from modyn.storage.formats import REGISTRY
from modyn.storage.ingest.open_dataset import QUARANTINE, OpenDataset
from modyn.storage.periodic_scrub import PeriodicScrub
from modyn.storage.read.column_values import MOST_VALUE_BYTES
from modyn.storage.read.snapshot import DatasetSnapshot
from modyn.storage.wire import (
    appended_to_proto,
    column_to_proto,
    info_to_proto,
    labels_from_proto,
    late_labels_to_proto,
    place_to_proto,
    record_from_proto,
    spec_from_proto,
)

FULL_NAME = "modyn.Storage"
Context = grpc.ServicerContext
Columns = Iterator[common_pb2.SampleColumns]
_ReadRequest = (
    storage_pb2.IntervalRequest
    | storage_pb2.NewSamplesRequest
    | storage_pb2.NewLabelsRequest
    | storage_pb2.KeysRequest
    | storage_pb2.ColumnRequest
    | storage_pb2.RegisteredDataset
    | storage_pb2.ColumnValuesRequest
)

_KEYS_AT_ONCE = 65_536
"""Largest number of keys that are looked up at once."""
_MAX_BATCH = 1_000_000
"""Largest number of samples in a requested batch. This number bounds the memory of a request."""
_SAMPLE_BYTES = 24
"""Largest size of the key, timestamp and label of a sample in a message."""
_VALUE_BYTES = MOST_VALUE_BYTES + 16
"""Largest size of a column's value and of its number in a message."""


class StorageService(storage_pb2_grpc.StorageServicer):
    """Serves a dataset store over gRPC. Each method implements the call of the same name in protos/modyn/proto/storage.proto.

    Args: endpoint: address of the service, with the largest size of a message.
    """

    def __init__(self, store: DatasetStore, endpoint: Endpoint) -> None:
        self._store = store
        self._samples_per_message = items_per_message(endpoint, _SAMPLE_BYTES)
        self._values_per_message = items_per_message(endpoint, _VALUE_BYTES)

    def RegisterDataset(self, request: storage_pb2.DatasetSpec, context: Context) -> storage_pb2.Dataset:
        """Register a dataset. If the dataset is registered with equal options, nothing changes. Status ALREADY_EXISTS: the dataset is registered with
        other options. The folder must exist.
        """
        return info_to_proto(self._store.register(spec_from_proto(request)))

    def ChangeDataset(self, request: storage_pb2.DatasetSpec, context: Context) -> storage_pb2.Dataset:
        """Change the options of a dataset for later indexing; INVALID_ARGUMENT if the options would change indexed samples."""
        return info_to_proto(self._store.change(spec_from_proto(request)))

    def ListDatasets(self, request: common_pb2.Empty, context: Context) -> storage_pb2.DatasetList:
        """List all datasets by name. Datasets that cannot be opened are logged and left out."""
        return storage_pb2.DatasetList(datasets=[info_to_proto(info) for info in self._store.infos()])

    def GetDataset(self, request: storage_pb2.DatasetName, context: Context) -> storage_pb2.Dataset:
        """Return a dataset with its counts; NOT_FOUND if there is no such dataset."""
        return info_to_proto(self._store.dataset(request.name).info())

    def DeleteDataset(self, request: storage_pb2.DatasetName, context: Context) -> common_pb2.Empty:
        """Delete the index of a dataset, not the user's files; NOT_FOUND if there is no such dataset."""
        self._store.delete(request.name)
        return common_pb2.Empty()

    def Ingest(self, request: storage_pb2.DatasetName, context: Context) -> Iterator[storage_pb2.IngestProgress]:
        """Index new files now and stream progress. Indexing continues if the client disconnects."""
        for progress in self._store.ingest(request.name, context.is_active):
            yield to_message(progress, storage_pb2.IngestProgress)

    def ScrubDataset(self, request: storage_pb2.DatasetName, context: Context) -> Iterator[storage_pb2.ScrubProgress]:
        """Compare the index and the data files with their checksums, and stream progress and the damaged files."""
        for progress in self._store.scrub(request.name, context.is_active):
            yield to_message(progress, storage_pb2.ScrubProgress)

    def ForgetFile(self, request: storage_pb2.DataFile, context: Context) -> common_pb2.DeletedSamples:
        """Delete the samples of a data file, so that the next Ingest indexes the file again; NOT_FOUND if the file is not indexed, or is missing."""
        return to_message(self._store.forget_file(request.dataset, request.path), common_pb2.DeletedSamples)

    def RebuildDataset(self, request: storage_pb2.DatasetName, context: Context) -> storage_pb2.Dataset:
        """Restore the rows of the catalogue from the newer index; CONFLICT if the index is not newer."""
        return info_to_proto(self._store.rebuild(request.name))

    def ListProblems(self, request: storage_pb2.DatasetName, context: Context) -> storage_pb2.ProblemList:
        """List damaged files of the index and files that were set aside, the newest problem first."""
        problems = self._store.problems(request.name)
        return storage_pb2.ProblemList(problems=[to_message(problem, storage_pb2.Problem) for problem in problems])

    def AppendRecords(self, request: storage_pb2.AppendRequest, context: Context) -> storage_pb2.AppendReply:
        """Append records to a dataset of records. If one record is not valid, none is appended: INVALID_ARGUMENT."""
        return appended_to_proto(
            self._store.append(request.dataset, list(map(record_from_proto, request.records)), request.identity)
        )

    def SetLabels(self, request: storage_pb2.LabelsRequest, context: Context) -> storage_pb2.AppendReply:
        """Set labels of records. Status INVALID_ARGUMENT: a label is not valid. NOT_FOUND: a record is unknown. In both cases no label is set."""
        return appended_to_proto(self._store.set_labels(request.dataset, labels_from_proto(request), request.identity))

    def NewLabels(self, request: storage_pb2.NewLabelsRequest, context: Context) -> Iterator[storage_pb2.LateLabelBatch]:
        """Stream late labels from number `first` on, and new labels as they arrive, until the client cancels."""
        dataset, size = self._dataset(request), min(_batch_size(request), self._samples_per_message)
        yield from map(late_labels_to_proto, dataset.new_labels(request.first, size, _until_left(dataset, context)))

    def CountSamples(self, request: storage_pb2.IntervalRequest, context: Context) -> storage_pb2.SampleCount:
        """Return the number of samples in [start, end), without deleted samples."""
        snapshot = self._snapshot(request)
        return storage_pb2.SampleCount(num_samples=snapshot.count(from_message(request.interval, Interval), _end_key(request)))

    def SamplesInInterval(self, request: storage_pb2.IntervalRequest, context: Context) -> Columns:
        """Stream the samples of [start, end) in one snapshot, by (timestamp, key). With `resume`, stream only samples after the given pair."""
        after = (request.after_timestamp, request.after_key) if request.resume else None
        interval, snapshot = from_message(request.interval, Interval), self._snapshot(request)
        end_label = request.end_label if request.HasField("end_label") else None
        yield from self._columns(
            snapshot.samples_in_interval(interval, _batch_size(request), after, _end_key(request), end_label)
        )

    def NewSamples(self, request: storage_pb2.NewSamplesRequest, context: Context) -> Columns:
        """Stream samples by key from `first_key` on, then new samples as they are published, until the client cancels."""
        dataset = self._dataset(request)
        yield from self._columns(dataset.new_samples(request.first_key, _batch_size(request), _until_left(dataset, context)))

    def SamplesByKey(self, request: storage_pb2.KeysRequest, context: Context) -> Columns:
        """Return labels and timestamps in the order of the keys; NOT_FOUND, before the first message, if a key is unknown or deleted."""
        snapshot, keys = self._snapshot(request), keys_from_bytes(request.keys)
        snapshot.refuse_missing(keys)
        parts = (keys[first : first + _KEYS_AT_ONCE] for first in range(0, len(keys), _KEYS_AT_ONCE))
        yield from self._columns(map(snapshot.samples_by_key, parts))

    def LocateSamples(self, request: storage_pb2.KeysRequest, context: Context) -> storage_pb2.SamplePlaces:
        """Return the samples' locations in the order of the keys; NOT_FOUND if a key is unknown or deleted."""
        places = self._store.snapshot(request.dataset).places(keys_from_bytes(request.keys))
        return storage_pb2.SamplePlaces(places=list(map(place_to_proto, places)))

    def DeleteSamples(self, request: storage_pb2.KeysRequest, context: Context) -> storage_pb2.DeleteReply:
        """Delete samples permanently. Unknown keys do not count."""
        deleted = self._dataset(request).delete_samples(keys_from_bytes(request.keys))
        return storage_pb2.DeleteReply(num_deleted=deleted)

    def DeletedKeys(self, request: storage_pb2.RegisteredDataset, context: Context) -> Iterator[storage_pb2.KeySetPart]:
        """Stream all deleted keys of a dataset, in parts that fit into messages."""
        snapshot = self._store.snapshot(request.dataset)
        snapshot.refuse_other(request.identity)
        content = snapshot.tombstones.keys.serialized()
        size = self._samples_per_message * _SAMPLE_BYTES
        for first in range(0, len(content), size):
            yield storage_pb2.KeySetPart(content=content[first : first + size])

    def CheckColumn(self, request: storage_pb2.ColumnRequest, context: Context) -> common_pb2.Empty:
        """Refuse a column that the first and the last samples lack; INVALID_ARGUMENT names the most similar column."""
        self._dataset(request)
        self._store.column_reader(request.dataset, request.column).check()
        return common_pb2.Empty()

    def ListColumns(self, request: storage_pb2.RegisteredDataset, context: Context) -> storage_pb2.ColumnNames:
        """Return the names of the columns that the first and the last samples have."""
        self._dataset(request)
        return storage_pb2.ColumnNames(names=self._store.column_reader(request.dataset, "0").names())

    def ColumnValues(self, request: storage_pb2.ColumnValuesRequest, context: Context) -> Iterator[storage_pb2.ColumnValuesPart]:
        """Stream values of a column in the order of the keys, in parts that fit into messages; NOT_FOUND if a key is unknown."""
        self._dataset(request)
        reader, keys = self._store.column_reader(request.dataset, request.column), keys_from_bytes(request.keys)
        for found in reader.values(keys, request.identity):
            for first in range(0, len(found), self._values_per_message):
                yield column_to_proto(found.slice(first, first + self._values_per_message))

    def OfferShortCut(self, request: storage_pb2.DatasetName, context: Context) -> storage_pb2.ShortCutOffer:
        """Return the data with which a reader on this machine reads without the service, or the reason why such reads are refused."""
        return to_message(self._store.offer_short_cut(request.name), storage_pb2.ShortCutOffer)

    def _dataset(self, request: _ReadRequest) -> OpenDataset:
        dataset = self._store.dataset(request.dataset)
        dataset.snapshot().refuse_other(request.identity)
        return dataset

    def _snapshot(self, request: _ReadRequest) -> DatasetSnapshot:
        return self._dataset(request).snapshot()

    def _columns(self, batches: Iterable[SampleBatch]) -> Columns:
        """Yield the samples of `batches` in messages that are neither empty nor too large."""
        size = self._samples_per_message
        for batch in batches:
            for first in range(0, len(batch), size):
                yield batch_to_proto(batch.slice(first, first + size))

    def ListPlugins(self, request: common_pb2.Empty, context: Context) -> common_pb2.PluginList:
        """List the registered file formats."""
        return plugins_to_proto(REGISTRY)


def build(context: ServiceContext) -> Sequence[Registration]:
    """Build the service and its payload server, and open all registered datasets."""
    config = context.config
    _check_roots(config)
    store = DatasetStore(config, Catalogue.open(config))
    # Shutdown callbacks run in reverse order, so payload server and scrub stop before the store is closed.
    context.on_shutdown(store.close)
    context.remove_outlived(f"datasets/*/{QUARANTINE}/*")
    store.start()
    if config.storage.scrub_every_s is not None:
        scrub = PeriodicScrub(store, config.storage.scrub_every_s)
        context.when_healthy.append(scrub.start)
        context.on_shutdown(scrub.close)
    prepare_run_dir(config.run_dir)
    payloads = PayloadServer(config.endpoint("flight"), store, ServerLimits(config.storage.max_threads))
    context.on_shutdown(payloads.stop)
    context.logger.info("serving_payloads", address=payloads.address)
    service = StorageService(store, config.endpoint("storage"))
    return [Registration(storage_pb2_grpc.add_StorageServicer_to_server, service, FULL_NAME)]


def _check_roots(config: SystemConfig) -> None:
    """Raise SecurityError if other machines can reach the service and the service may read any folder of this machine."""
    endpoints = (config.endpoint("storage"), *config.flight_endpoints)
    reachable = [endpoint.address for endpoint in endpoints if not endpoint.is_local]
    if reachable and not config.storage.dataset_roots:
        raise SecurityError(
            f"storage will not listen on {reachable[0]}, which other machines can reach, without limits to what it reads; "
            "set storage.dataset_roots in the system file to the folders of the datasets"
        )


def _until_left(dataset: OpenDataset, context: Context) -> Callable[[], bool]:
    """Return a function that returns True until the call ends. The end of the call wakes all waiting streams of the dataset. Then the stream of this
    call calls the function again, and ends.
    """
    ended = threading.Event()  # A thread of gRPC sets the event when the call ends. Then `wake` makes the stream check the event.

    def end() -> None:
        ended.set()
        dataset.wake()

    if not context.add_callback(end):  # The call has ended already.
        ended.set()
    return lambda: not ended.is_set()


def _end_key(request: storage_pb2.IntervalRequest) -> int | None:
    return request.end_key if request.HasField("end_key") else None


def _batch_size(request: storage_pb2.IntervalRequest | storage_pb2.NewSamplesRequest | storage_pb2.NewLabelsRequest) -> int:
    if not 1 <= request.batch_size <= _MAX_BATCH:
        raise InvalidArgumentError(f"batch_size is {request.batch_size}; allowed are 1 to {_MAX_BATCH:,}")
    return request.batch_size
