"""A file with a chosen part of a trigger set: keys and weights, which the dataset reads instead of the keys and weights of the selector."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from modyn.columnar import ColumnFile, FileKind
from modyn.dataset.connections import DatasetClients
from modyn.records import Float32Array, Int64Array, KeysAndWeights, RunId, TriggerSetInfo
from modyn.trainer_server.disk.whole_file import find_whole, write_whole

_KIND: Final = FileKind(b"MODYNCHO", 2, "file of chosen samples", "delete it: they are chosen again")


@dataclass(frozen=True, slots=True)
class ChosenSamples:
    """The samples that a selection chose. info: description of the samples as a trigger set. notes: facts about the choice."""

    path: Path
    info: TriggerSetInfo
    notes: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class ChosenRows:
    """Chosen samples with the scores by which they were chosen, float32 (n,); the scores are None if the policy has no single score for a sample."""

    chosen: KeysAndWeights
    scores: Float32Array | None

    def __len__(self) -> int:
        return len(self.chosen)

    def scores_of(self, keys: Int64Array) -> Float32Array:
        """Return the scores of the chosen samples with these keys, float32 (n,); NaN without scores."""
        if self.scores is None:
            return np.full(len(keys), np.nan, np.float32)
        in_order, order = self._in_order
        found: Float32Array = self.scores[order[np.searchsorted(in_order, keys)]]
        return found

    @cached_property
    def _in_order(self) -> tuple[Int64Array, Int64Array]:
        order = np.argsort(self.chosen.keys)
        return self.chosen.keys[order], order


def write_chosen_set(path: Path, trigger_set: TriggerSetInfo, rows: ChosenRows, meta: Mapping[str, Any]) -> ChosenSamples:
    """Write the chosen samples of `trigger_set`. The file is complete and durable on return.

    Args: meta: `identity` of the selection, and `notes`. Raises: TrainingError: the disk cannot be written to.
    """
    chosen, scores = rows.chosen, {} if rows.scores is None else {"scores": rows.scores}
    checksum = hashlib.sha256(np.ascontiguousarray(chosen.keys, "<i8").data).hexdigest()
    own = {"keys_checksum": checksum, "partition_size": trigger_set.partition_size}
    write_whole(path, _KIND, {"keys": chosen.keys, "weights": chosen.weights, **scores}, {**meta, **own})
    return ChosenSamples(path, replace(trigger_set, num_keys=len(chosen), keys_checksum=checksum), meta["notes"])


def find_chosen_set(path: Path, trigger_set: TriggerSetInfo, identity: Any) -> ChosenSamples | None:
    """Return the set that an earlier attempt wrote for this selection; None if `path` has no set of this identity, or a damaged set."""
    if (file := find_whole(path, _KIND, identity)) is None:
        return None
    info = replace(trigger_set, num_keys=len(file.column("keys")), keys_checksum=file.meta["keys_checksum"])
    return ChosenSamples(path, info, file.meta["notes"])


def read_chosen_set(path: Path) -> ChosenRows:
    """Map the content of the file. Raises: NotFoundError, CorruptStateError, UnavailableError: the file is missing, damaged or unreadable."""
    file = ColumnFile.open(path, _KIND)
    file.verify()
    chosen = KeysAndWeights(file.column("keys"), file.column("weights"))
    return ChosenRows(chosen, file.column("scores") if "scores" in file else None)


@dataclass(frozen=True, slots=True)
class ChosenSource:
    """Connects a dataset to the payloads of `connect`, and to the keys in a file. Picklable if `connect` is picklable."""

    path: Path
    connect: Callable[[], DatasetClients]

    def __call__(self) -> DatasetClients:
        """Connect in the process that reads the samples."""
        return self.connect().with_keys(ChosenKeys(self.path))


class ChosenKeys:
    """Returns keys and weights of a chosen set, like a client of the selector."""

    def __init__(self, path: Path) -> None:
        self._file = ColumnFile.open(path, _KIND)

    def keys(self, run_id: RunId, trigger_id: int, partition: int, keys_checksum: str = "") -> KeysAndWeights:
        """See `SelectorClient.keys`."""
        assert keys_checksum in ("", self._file.meta["keys_checksum"])
        size = self._file.meta["partition_size"]
        rows = slice(partition * size, (partition + 1) * size)
        return KeysAndWeights(self._file.column("keys")[rows], self._file.column("weights")[rows])

    def close(self) -> None:
        """Do nothing. The file stays mapped until the last array that uses it is freed."""
