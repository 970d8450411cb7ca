"""A trigger set in memory with its payloads, for tests of what reads batches; may be sent to other processes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from modyn.dataset.cached.cache_source import CacheSource
from modyn.dataset.connections import DatasetClients
from modyn.errors import CancelledError
from modyn.records import Int64Array, KeysAndWeights, RunId, TriggerSetInfo
from modyn.selector.client import SelectorClient
from modyn.storage.model.dataset_records import SamplePlace
from modyn.storage.model.samples import Payloads
from modyn.storage.model.schema import DatasetSchema
from modyn.storage.payloads import LocalPayloads, LocatedSamples, OnMissing
from modyn.testing.fake_storage import FakeFetch, FakePayloadClient, FakeStorage, without_bytes
from modyn.testing.fakes import FakeClient


@dataclass
class FakeTriggerSet:
    """`keys` in partitions of `partition_size`. Sample k has label k % 10, weight k / 2 and as payload `payload(k)`, by default int64 k.

    deleted: keys that storage no longer has. Call it to connect: it is what TriggerSetDataset takes as `connect`.
    """

    keys: Int64Array
    partition_size: int
    deleted: frozenset[int] = frozenset()
    payload: Callable[[int], bytes] | None = None
    answer_size: int = 7
    """Samples in one message of the payload server."""
    before_fetch: Callable[[Int64Array], None] | None = None
    """Called with the keys of each payload request; may raise."""
    trigger_id: int = 0
    dataset_id: str = "fake"
    short_cut: bool = False
    """Whether payloads are read here, not fetched."""
    cache: CacheSource | None = None

    @property
    def info(self) -> TriggerSetInfo:
        checksum = hashlib.sha256(self.keys.astype("<i8").tobytes()).hexdigest()
        return TriggerSetInfo(RunId("fake-run"), self.trigger_id, len(self.keys), self.partition_size, checksum)

    def storage(self) -> FakeStorage:
        """Keys 0 … max(keys), at timestamps equal to the keys."""
        storage = FakeStorage()
        storage.add_dataset(self.dataset_id)
        count = int(self.keys.max()) + 1 if len(self.keys) else 0
        payload = self.payload or int64_payload
        labels = [key % 10 for key in range(count)]
        storage.add_samples(self.dataset_id, range(count), labels, [payload(key) for key in range(count)])
        storage.client().delete_samples(self.dataset_id, np.asarray(sorted(self.deleted), np.int64))
        storage.before_fetch = self.before_fetch
        return storage

    def __call__(self) -> DatasetClients:
        storage = self.storage()
        payloads = FakeLocalPayloads(storage) if self.short_cut else FakePayloadClient(storage, self.answer_size)
        return DatasetClients(_FakeKeys(self), payloads, None if self.cache is None else self.cache.open())


def int64_payload(key: int) -> bytes:
    return np.int64(key).tobytes()


class _FakeKeys(FakeClient, SelectorClient):
    """A SelectorClient that knows the keys of one trigger set."""

    def __init__(self, trigger_set: FakeTriggerSet) -> None:
        self._trigger_set = trigger_set

    def keys(self, run_id: RunId, trigger_id: int, partition: int, keys_checksum: str = "") -> KeysAndWeights:
        size = self._trigger_set.partition_size
        keys = self._trigger_set.keys[partition * size : (partition + 1) * size]
        return KeysAndWeights(keys, (keys / 2).astype(np.float32))


class StuckPayloadClient(FakePayloadClient):
    """The answer to a request that has `stuck_key` in it never comes: such a fetch ends by being called off."""

    def __init__(self, storage: FakeStorage, stuck_key: int) -> None:
        super().__init__(storage, 10)
        self._stuck_key = stuck_key
        self.started, self.called_off = threading.Event(), threading.Event()

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
        if self._stuck_key in keys:
            return _StuckFetch(self)
        return super().fetch(dataset, keys, on_missing, identity=identity, with_bytes=with_bytes)


class _StuckFetch(FakeFetch):
    def __init__(self, client: StuckPayloadClient) -> None:
        super().__init__(iter(()))
        self._client = client

    def __next__(self) -> Payloads:
        self._client.started.set()
        self._client.called_off.wait()
        raise CancelledError("the fetch was cancelled")

    def cancel(self) -> None:
        self._client.called_off.set()


class FakeLocalPayloads(LocalPayloads):
    """The short cut to a FakeStorage, whose `before_fetch` is called when payloads are read."""

    def __init__(self, storage: FakeStorage) -> None:
        self._fake = storage

    def close(self) -> None:
        pass

    def schema(self, dataset: str) -> DatasetSchema | None:
        return self._fake.client().dataset(dataset).schema

    def place(self, key: int) -> SamplePlace | None:
        return SamplePlace(key, "/fake/file", key, 8, 0, key)

    def locate(self, dataset: str, keys: Int64Array, on_missing: OnMissing = "raise", identity: str = "") -> LocatedSamples:
        keys = np.asarray(keys, np.int64)
        where = self._fake.present(dataset, keys, on_missing, identity)
        return _FakeLocatedSamples(self._fake, dataset, keys[where], where)


class _FakeLocatedSamples(LocatedSamples):
    def __init__(self, storage: FakeStorage, dataset: str, keys: Int64Array, where: Int64Array) -> None:
        for name, value in {"keys": keys, "where": where, "_fake": storage, "_dataset": dataset}.items():
            object.__setattr__(self, name, value)

    def without_bytes(self, rows: slice) -> Payloads:
        storage: FakeStorage = self._fake  # type: ignore[attr-defined]
        return without_bytes(storage.payloads(self._dataset, self.keys[rows]))  # type: ignore[attr-defined]

    def take(self, rows: Int64Array | slice) -> Payloads:
        storage: FakeStorage = self._fake  # type: ignore[attr-defined]
        keys = self.keys[rows]
        if storage.before_fetch is not None:
            storage.before_fetch(keys)
        return storage.payloads(self._dataset, keys)  # type: ignore[attr-defined]
