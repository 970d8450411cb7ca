"""A chosen part of a trigger set as a file: keys and weights, which the dataset reads in place of those of the selector."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from modyn.atomic_write import make_folder
from modyn.columnar import ColumnFile, FileKind, write_columns
from modyn.dataset.connections import DatasetClients
from modyn.errors import CorruptStateError, ModynError, NotFoundError, TrainingError
from modyn.records import Float32Array, Int64Array, KeysAndWeights, RunId, TriggerSetInfo
from modyn.rpc.logs import get_logger

_KIND: Final = FileKind(b"MODYNCHO", 2, "file of chosen samples", "delete it: they are chosen again")


@dataclass(frozen=True, slots=True)
class ChosenSamples:
    """The samples that a selection has chosen. info: as of a trigger set. notes: what is known of the choice."""

    path: Path
    info: TriggerSetInfo
    notes: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class ChosenRows:
    """Chosen samples with the scores by which they were chosen, float32 (n,), None where there is no single number a sample."""

    chosen: KeysAndWeights
    scores: Float32Array | None

    def __len__(self) -> int:
        return len(self.chosen)

    def scores_of(self, keys: Int64Array) -> Float32Array:
        """The scores of chosen samples, float32 (n,), by their keys; NaN without scores."""
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
    """Write the chosen samples of `trigger_set`: complete and durable on return.

    Args: meta: `identity` of the selection, and `notes`. Raises: TrainingError: the disk cannot be written to.
    """
    chosen, scores = rows.chosen, {} if rows.scores is None else {"scores": rows.scores}
    checksum = hashlib.sha256(np.ascontiguousarray(chosen.keys, "<i8").data).hexdigest()
    own = {"keys_checksum": checksum, "partition_size": trigger_set.partition_size}
    try:
        make_folder(path.parent)
        write_columns(path, _KIND, {"keys": chosen.keys, "weights": chosen.weights, **scores}, {**meta, **own})
    except (OSError, ModynError) as error:
        reason = error.message if isinstance(error, ModynError) else error.strerror
        raise TrainingError(f"the chosen samples cannot be written to {path}: {reason}; free space there") from error
    return ChosenSamples(path, replace(trigger_set, num_keys=len(chosen), keys_checksum=checksum), meta["notes"])


def find_chosen_set(path: Path, trigger_set: TriggerSetInfo, identity: Any) -> ChosenSamples | None:
    """The set that an earlier attempt has written at `path` for this selection; None: there is none that is whole. Args: identity: as written."""
    try:
        file = ColumnFile.open(path, _KIND)
        file.verify()
        if file.meta["identity"] != identity:
            return None
        info = replace(trigger_set, num_keys=len(file.column("keys")), keys_checksum=file.meta["keys_checksum"])
    except NotFoundError:
        return None
    except CorruptStateError as error:
        get_logger("training").warning("chosen_samples_ignored", reason=error.message)
        return None
    return ChosenSamples(path, info, file.meta["notes"])


def read_chosen_set(path: Path) -> ChosenRows:
    """What is in the file, mapped. Raises: NotFoundError, CorruptStateError, UnavailableError: it is not there or not whole."""
    file = ColumnFile.open(path, _KIND)
    file.verify()
    chosen = KeysAndWeights(file.column("keys"), file.column("weights"))
    return ChosenRows(chosen, file.column("scores") if "scores" in file else None)


@dataclass(frozen=True, slots=True)
class ChosenSource:
    """Connects a dataset to the payloads that `connect` reaches, and to the keys of a file. Picklable if `connect` is."""

    path: Path
    connect: Callable[[], DatasetClients]

    def __call__(self) -> DatasetClients:
        """Connect, in the process that reads."""
        return self.connect().with_keys(ChosenKeys(self.path))


class ChosenKeys:
    """Serves keys and weights of a chosen set as a selector does."""

    def __init__(self, path: Path) -> None:
        self._file = ColumnFile.open(path, _KIND)

    def keys(self, run_id: RunId, trigger_id: int, partition: int, keys_checksum: str = "") -> KeysAndWeights:
        """As `SelectorClient.keys`."""
        assert keys_checksum in ("", self._file.meta["keys_checksum"])
        size = self._file.meta["partition_size"]
        rows = slice(partition * size, (partition + 1) * size)
        return KeysAndWeights(self._file.column("keys")[rows], self._file.column("weights")[rows])

    def close(self) -> None:
        """Nothing to do: the map ends with the last array of it."""
