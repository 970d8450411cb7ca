"""The selector's service in the test's own process, with a client; and what it asks of storage, answered from a FakeStorage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np

from modyn._core import KeySet
from modyn.config.system import SystemConfig
from modyn.proto import common_pb2, storage_pb2, storage_pb2_grpc
from modyn.records import SampleBatch
from modyn.rpc.arrays import keys_from_bytes
from modyn.rpc.logs import get_logger
from modyn.rpc.server import Registration, ServiceContext, start_server
from modyn.selector.client import SelectorClient
from modyn.selector.service import build
from modyn.selector.window import NO_KEYS
from modyn.state_folders import prepare_run_dir
from modyn.storage.wire import column_to_proto, info_to_proto
from modyn.testing.fake_storage import FakeStorage


class _StorageOfFake(storage_pb2_grpc.StorageServicer):
    def __init__(self, storage: FakeStorage) -> None:
        self._client = storage.client()

    def GetDataset(self, request: storage_pb2.DatasetName, context: grpc.ServicerContext) -> storage_pb2.Dataset:
        return info_to_proto(self._client.dataset(request.name))

    def DeletedKeys(
        self, request: storage_pb2.RegisteredDataset, context: grpc.ServicerContext
    ) -> Iterator[storage_pb2.KeySetPart]:
        yield storage_pb2.KeySetPart(content=self._client.deleted_keys(request.dataset, request.identity).serialized())

    def CheckColumn(self, request: storage_pb2.ColumnRequest, context: grpc.ServicerContext) -> common_pb2.Empty:
        self._client.check_column(request.dataset, request.column, request.identity)
        return common_pb2.Empty()

    def ColumnValues(
        self, request: storage_pb2.ColumnValuesRequest, context: grpc.ServicerContext
    ) -> Iterator[storage_pb2.ColumnValuesPart]:
        keys = keys_from_bytes(request.keys)
        yield from map(column_to_proto, self._client.column_values(request.dataset, keys, request.column, request.identity))


@contextmanager
def serving_storage(config: SystemConfig, storage: FakeStorage | None = None) -> Iterator[FakeStorage]:
    """What the selector asks storage for, answered from `storage`; by default from one with an empty dataset `d`."""
    if storage is None:
        storage = FakeStorage()
        storage.add_dataset("d")
    prepare_run_dir(config.run_dir)
    registration = Registration(storage_pb2_grpc.add_StorageServicer_to_server, _StorageOfFake(storage), "modyn.Storage")
    server = start_server("storage", config.endpoint("storage"), [registration])
    try:
        yield storage
    finally:
        server.stop(0.1)


@contextmanager
def serving(config: SystemConfig, storage: FakeStorage | None = None) -> Iterator[SelectorClient]:
    """Yield a client of a selector that serves during the block, with a storage that answers from `storage`."""
    context = ServiceContext("selector", config, get_logger("selector"))
    with serving_storage(config, storage):
        server = start_server("selector", config.endpoint("selector"), build(context))
        try:
            with SelectorClient(config.endpoint("selector")) as opened:
                yield opened
        finally:
            server.stop()
            context.shut_down()


def nothing_deleted(dataset: str, identity: str) -> KeySet:
    """Say that no sample of a dataset is deleted."""
    return NO_KEYS


def stream(start: int, end: int, dtype: type[np.generic] = np.int64) -> SampleBatch:
    """Make positions [start, end) of a stream: key 3 n + 1, timestamp n - 50, label n % 10."""
    positions = np.arange(start, end)
    labels: Any = (positions % 10).astype(dtype)
    return SampleBatch(positions * 3 + 1, positions - 50, labels)
