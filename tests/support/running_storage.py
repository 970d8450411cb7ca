"""A real storage service in the test's own process, and small data files for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from modyn.config.dataset import DatasetConfig
from modyn.config.system import SystemConfig
from modyn.proto.storage_pb2_grpc import add_StorageServicer_to_server
from modyn.rpc.server import Registration, start_server
from modyn.state_folders import prepare_run_dir
from modyn.storage.catalogue.catalogue import Catalogue, DatasetRow
from modyn.storage.client import IngestProgress, StorageClient
from modyn.storage.datasets import DatasetStore
from modyn.storage.flight.client import FetchLimits
from modyn.storage.flight.server import PayloadServer, ServerLimits
from modyn.storage.payloads import LocalPayloads, PayloadClient, open_local_payloads
from modyn.storage.service import FULL_NAME, StorageService
from modyn.testing.waiting import PATIENCE_S

SMALL_SERVING = ServerLimits(chunk_rows=64, chunk_bytes=80)
SMALL_FETCHING = FetchLimits(first_keys=150, request_bytes=5000)
"""Payloads come in many short record batches, and a fetch is many requests."""
ONCE = replace(SMALL_FETCHING, retry_s=0)
"""As SMALL_FETCHING; no endpoint is tried twice without an answer in between."""

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


def binary_dataset(folder: Path, name: str = "numbers", **options: object) -> DatasetConfig:
    folder.mkdir(parents=True, exist_ok=True)
    fields: dict[str, object] = {"watch": False, **options}
    config = {"record_size": 16, "label_size": 8, "byteorder": "little"}
    return DatasetConfig(name=name, base_path=folder, file_wrapper="BinaryFileWrapper", file_wrapper_config=config, **fields)


def row_of(config: DatasetConfig, version: int = 0) -> DatasetRow:
    """The catalogue's row of an empty dataset."""
    return DatasetRow(1, config, "5eed", float_labels=False, next_key=0, version=version)


def image_dataset(folder: Path, name: str = "images", **options: object) -> DatasetConfig:
    folder.mkdir(parents=True, exist_ok=True)
    fields: dict[str, object] = {"watch": False, **options}
    config = {"file_extension": ".png", "label_file_extension": ".label"}
    return DatasetConfig(
        name=name,
        base_path=folder,
        file_wrapper="SingleSampleFileWrapper",
        file_wrapper_config=config,
        **fields,
    )


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


@dataclass
class RunningStorage:
    """One storage service with a client of each plane."""

    config: SystemConfig
    store: DatasetStore
    client: StorageClient
    payloads: PayloadClient

    def ingest(self, name: str = "numbers") -> IngestProgress:
        return list(self.client.ingest(name))[-1]

    def short_cut(self, name: str = "numbers", num_threads: int = 2) -> LocalPayloads:
        """A reader that needs no payload server."""
        return open_local_payloads(self.config.endpoint("storage"), name, num_threads)

    def data_of(self, keys: Sequence[int] | range, name: str = "numbers") -> list[int]:
        """The data of the records with these keys, fetched over Flight."""
        found: list[int] = []
        for batch in self.payloads.fetch(name, np.asarray(keys, np.int64)):
            found += [int.from_bytes(batch.payload(i), "little") for i in range(len(batch))]
        return found


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
