"""The keys of a trigger set in memory, which a dataset reads in place of those of the selector."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from modyn.dataset.connections import DatasetClients
from modyn.records import KeysAndWeights, RunId, TriggerSetInfo


@dataclass(frozen=True, slots=True, eq=False)
class HeldKeys:
    """Serves keys and weights of a trigger set as a selector does."""

    info: TriggerSetInfo
    held: KeysAndWeights
    """Of the whole set, in its order."""

    @classmethod
    def read(cls, info: TriggerSetInfo, connect: Callable[[], DatasetClients]) -> HeldKeys:
        """Read all of them. Raises: ConflictError: the selector has another trigger set by now."""
        with closing(connect()) as clients:
            keys = clients.selector.keys
            parts = [
                keys(info.run_id, info.trigger_id, partition, keys_checksum=info.keys_checksum)
                for partition in range(info.num_partitions)
            ]
        return cls(info, KeysAndWeights.concatenate(parts))

    def keys(self, run_id: RunId, trigger_id: int, partition: int, keys_checksum: str = "") -> KeysAndWeights:
        """As `SelectorClient.keys`."""
        assert keys_checksum in ("", self.info.keys_checksum)
        rows = slice(partition * self.info.partition_size, (partition + 1) * self.info.partition_size)
        return KeysAndWeights(self.held.keys[rows], self.held.weights[rows])

    def close(self) -> None:
        """Nothing to do: they are in memory."""


@dataclass(frozen=True, slots=True)
class HeldSource:
    """Connects a dataset to the payloads that `connect` reaches, and to keys in memory. Picklable if `connect` is."""

    keys: HeldKeys
    connect: Callable[[], DatasetClients]

    def __call__(self) -> DatasetClients:
        """Connect, in the process that reads."""
        return self.connect().with_keys(self.keys)
