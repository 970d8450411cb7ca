"""A trigger set in memory with its payloads, for tests of what reads batches; may be sent to other processes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from modyn.dataset.connections import DatasetClients
from modyn.records import Int64Array, KeysAndWeights, RunId, TriggerSetInfo
from modyn.selector.client import SelectorClient
from modyn.testing.fake_client import FakeClient
from modyn.testing.fake_storage import FakePayloadClient, FakeStorage


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
        payloads = storage.short_cut() if self.short_cut else FakePayloadClient(storage, self.answer_size)
        return DatasetClients(_FakeKeys(self), payloads)


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
