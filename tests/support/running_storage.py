"""A real storage service in the test's own process, and small data files for it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from modyn.config.dataset import DatasetConfig
from modyn.config.system import SystemConfig
from modyn.proto.storage_pb2_grpc import add_StorageServicer_to_server
from modyn.records import Int64Array
from modyn.rpc.server import Registration, start_server
from modyn.state_folders import prepare_run_dir
from modyn.storage.catalogue.catalogue import Catalogue, DatasetRow
from modyn.storage.client import IngestProgress, StorageClient
from modyn.storage.datasets import DatasetStore
from modyn.storage.flight.client import FetchLimits
from modyn.storage.flight.server import PayloadServer, ServerLimits
from modyn.storage.payloads import LocalPayloads, PayloadClient, open_local_payloads
from modyn.storage.read.published_datasets import PublishedDatasets, PublishedNames
from modyn.storage.read.record_readers import RecordReaders
from modyn.storage.read.snapshot import DatasetSnapshot
from modyn.storage.service import FULL_NAME, StorageService
from modyn.testing.waiting import PATIENCE_S

SMALL_SERVING = ServerLimits(chunk_rows=64, chunk_bytes=80)
SMALL_FETCHING = FetchLimits(first_keys=150, request_bytes=5000)
"""Payloads come in many short record batches, and a fetch is many requests."""
ONCE = replace(SMALL_FETCHING, retry_s=0)
"""The limits of SMALL_FETCHING, and no endpoint is tried twice without an answer in between."""

RECORD = np.dtype([("label", "<i8"), ("data", "<i8")])
"""Records of these tests: the payload of a sample is its data, which is unique."""


def write_records(
    path: Path, data: Sequence[int] | range, mtime: int, labels: Sequence[int] | None = None, mode: str = "wb"
) -> None:
    """A binary file with one record for each number of `data`; labels are data % 10 unless given."""
    records = np.zeros(len(data), RECORD)
    records["data"] = list(data)
    records["label"] = [d % 10 for d in data] if labels is None else list(labels)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode) as file:
        file.write(records.tobytes())
    os.utime(path, (mtime, mtime))


def files_dataset(
    folder: Path,
    options: Mapping[str, object] | None = None,
    wrapper: str = "CsvFileWrapper",
    source: str = "",
    *,
    name: str = "",
    **fields: object,
) -> DatasetConfig:
    """A dataset of the files in `folder`, which has the name of the folder unless given; CSV rows with their label first unless told otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"label_index": 0} if options is None else options
    known = {"file_wrapper": wrapper, "file_wrapper_config": config, "timestamp_source": source, "watch": False}
    return DatasetConfig.model_validate({"name": name or folder.name, "base_path": folder, **known, **fields})


def binary_dataset(folder: Path, name: str = "numbers", **fields: Any) -> DatasetConfig:
    """A dataset of the files that `write_records` writes."""
    options = {"record_size": 16, "label_size": 8, "byteorder": "little"}
    return files_dataset(folder, options, "BinaryFileWrapper", name=name, **fields)


def records_dataset(name: str = "clicks", label_type: str = "int") -> DatasetConfig:
    """A dataset of records that clients append."""
    fields = {"name": name, "base_path": "records://", "file_wrapper_config": {"label_type": label_type}}
    return DatasetConfig.model_validate(fields)


def row_of(config: DatasetConfig, version: int = 0) -> DatasetRow:
    """The catalogue's row of an empty dataset."""
    return DatasetRow(1, config, "5eed", float_labels=False, next_key=0, version=version)


def image_dataset(folder: Path, name: str = "images", **fields: Any) -> DatasetConfig:
    """A dataset of the files that `write_image` writes."""
    options = {"file_extension": ".png", "label_file_extension": ".label"}
    return files_dataset(folder, options, "SingleSampleFileWrapper", name=name, **fields)


def write_image(folder: Path, name: str, payload: bytes, label: int, mtime: int) -> None:
    for ending, content in ((".label", str(label).encode()), (".png", payload)):
        path = folder / f"{name}{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (mtime, mtime))


def rewrite(path: Path, content: bytes) -> None:
    """Write a file again, with the size and the time that it had."""
    status = path.stat()
    assert len(content) == status.st_size
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def flip(path: Path, position: int, mask: int = 0x10) -> None:
    """Flip bits of a byte in place, which readers have mapped perhaps; the file keeps its times."""
    status = path.stat()
    with path.open("r+b") as file:
        position %= status.st_size
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ mask]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def published_by(config: SystemConfig, name: str = "replica-1", readers: RecordReaders | None = None) -> PublishedDatasets:
    """The datasets as a replica sees them."""
    return PublishedDatasets(PublishedNames.of(config), readers or RecordReaders(1), name)


def payloads_in(snapshot: DatasetSnapshot, keys: Sequence[int] | range | Int64Array) -> list[bytes]:
    """Return the payloads of these keys, gathered as a reader does."""
    entries = snapshot.index.entries(np.asarray(keys, np.int64))
    assert entries is not None
    data, bounds = snapshot.reader.gather(entries.file_ids, entries.offsets, entries.lengths)
    return [data[start:stop].tobytes() for start, stop in pairwise(bounds.tolist())]


def data_in(snapshot: DatasetSnapshot, keys: Sequence[int] | range | Int64Array) -> list[int]:
    """Return the data of the records with these keys, gathered as a reader does."""
    return [int.from_bytes(payload, "little") for payload in payloads_in(snapshot, keys)]


@dataclass
class RunningStorage:
    """One storage service with a client of each plane."""

    config: SystemConfig
    store: DatasetStore
    client: StorageClient
    payloads: PayloadClient

    def ingest(self, name: str = "numbers") -> IngestProgress:
        return list(self.client.ingest(name))[-1]

    def index(self, config: DatasetConfig) -> IngestProgress:
        """Register a dataset and ingest its files."""
        self.client.register_dataset(config)
        return self.ingest(config.name)

    def reasons(self, name: str = "numbers") -> dict[str, str]:
        """Return why files have problems, by their names."""
        return {os.path.basename(problem.path): problem.reason for problem in self.client.problems(name)}

    def short_cut(self, name: str = "numbers", num_threads: int = 2) -> LocalPayloads:
        """A reader that needs no payload server."""
        return open_local_payloads(self.config.endpoint("storage"), name, num_threads)

    def payloads_of(self, keys: Sequence[int] | range | Int64Array, name: str) -> list[bytes]:
        """The payloads of these keys, fetched over Flight."""
        batches = self.payloads.fetch(name, np.asarray(keys, np.int64))
        return [bytes(batch.payload(i)) for batch in batches for i in range(len(batch))]

    def payloads_both_ways(self, keys: Sequence[int] | range | Int64Array, name: str) -> list[bytes]:
        """The payloads of these keys, over Flight; the short cut must read the same."""
        found = self.payloads_of(keys, name)
        with self.short_cut(name) as local:
            there = local.locate(name, np.asarray(keys, np.int64)).take(slice(None))
            assert [bytes(there.payload(i)) for i in range(len(there))] == found
        return found

    def data_of(self, keys: Sequence[int] | range, name: str = "numbers") -> list[int]:
        """The data of the records with these keys, fetched over Flight."""
        return [int.from_bytes(payload, "little") for payload in self.payloads_of(keys, name)]


class FileDataset:
    """A registered dataset whose files a test writes."""

    def __init__(self, storage: RunningStorage, config: DatasetConfig) -> None:
        self.storage, self.name, self.folder = storage, config.name, Path(config.base_path)
        storage.client.register_dataset(config)

    def ingest(self) -> None:
        for _ in self.storage.store.ingest(self.name):
            pass

    @property
    def next_key(self) -> int:
        return self.storage.client.dataset(self.name).next_key

    def labels(self) -> list[int]:
        """Labels of all samples, by key, from the payload server."""
        batches = self.storage.payloads.fetch(self.name, np.arange(self.next_key)) if self.next_key else []
        return [int(label) for batch in batches for label in batch.labels]

    def times(self) -> list[int]:
        """Times of all samples, by key."""
        if not self.next_key:
            return []
        return self.storage.client.samples_by_key(self.name, np.arange(self.next_key)).timestamps.tolist()  # type: ignore[no-any-return]

    def reasons(self) -> list[str]:
        """Why files and rows have problems, the newest first."""
        return [problem.reason for problem in self.storage.client.problems(self.name)]


def start_storage(
    config: SystemConfig,
    stack: ExitStack,
    serving: ServerLimits | None = None,
    fetching: FetchLimits = FetchLimits(retry_s=PATIENCE_S),  # noqa: B008  (it is frozen)
) -> RunningStorage:
    """Start a service and its clients; they stop in reverse order when `stack` is closed."""
    store = DatasetStore(config, Catalogue.open(config))
    stack.callback(store.close)
    store.start()
    prepare_run_dir(config.run_dir)
    flight = PayloadServer(config.endpoint("flight"), store, serving)
    stack.callback(flight.stop)
    endpoint = config.endpoint("storage")
    service = Registration(add_StorageServicer_to_server, StorageService(store, endpoint), FULL_NAME)
    server = start_server("storage", endpoint, [service])
    stack.callback(server.stop)
    client = stack.enter_context(StorageClient(endpoint.model_copy(update={"address": server.address}), retry_s=PATIENCE_S))
    flight_endpoint = config.endpoint("flight").model_copy(update={"address": flight.address})
    payloads = stack.enter_context(PayloadClient(flight_endpoint, limits=fetching))
    return RunningStorage(config, store, client, payloads)


@contextmanager
def running_storage(config: SystemConfig) -> Iterator[RunningStorage]:
    """Start a service and its clients for the block."""
    with ExitStack() as stack:
        yield start_storage(config, stack)
