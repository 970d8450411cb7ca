"""A dataset as a reader sees it at one moment: where each sample is, and which are gone. Immutable, so that readers need no lock."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from modyn._core import PathTable
from modyn.config.system import DatasetConfig
from modyn.errors import NotFoundError
from modyn.records import Int64Array
from modyn.storage.index.segment_index import SegmentIndex
from modyn.storage.index.tombstones import BoolArray, Tombstones
from modyn.storage.model.samples import RecordReader

_NAMED_KEYS = 5


@dataclass(frozen=True, slots=True, eq=False)
class DatasetSnapshot:
    """What is known of a dataset at `version`. `paths`: full path by file id."""

    config: DatasetConfig
    identity: str
    """Of this registration: a dataset that is registered under the same name later has another."""
    version: int
    float_labels: bool
    index: SegmentIndex
    deletions: Tombstones
    paths: PathTable
    altered: frozenset[int]
    """Files whose bytes are no longer those that were indexed: nobody may read samples from them."""
    source: RecordReader
    _altered_ids: npt.NDArray[np.uint32] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_altered_ids", np.array(sorted(self.altered), np.uint32))

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def base_path(self) -> str:
        return str(self.config.base_path)

    def refuse_other(self, identity: str) -> None:
        """Raises NotFoundError if this is not the registration with this identity."""
        if self.identity != identity:
            raise NotFoundError(
                f"dataset '{self.name}' was deleted, and another was registered under its name: its keys mean other samples now"
            )

    def missing(self, keys: Int64Array) -> BoolArray:
        """For each key, whether there is no sample with it (any more): bool (n,)."""
        return missing_keys(keys, self.index, self.deletions)

    def refuse_missing(self, keys: Int64Array) -> None:
        """Raises NotFoundError naming the first keys that are missing."""
        refuse_missing(self.name, keys, self.index, self.deletions)

    def first_altered(self, file_ids: npt.NDArray[np.uint32]) -> int | None:
        """The first position in `file_ids` with a file that may not be read."""
        if not self.altered:
            return None
        found = np.flatnonzero(np.isin(file_ids, self._altered_ids))
        return int(found[0]) if len(found) else None


def missing_keys(keys: Int64Array, index: SegmentIndex, deletions: Tombstones) -> BoolArray:
    """For each key, whether there is no sample with it (any more): bool (n,)."""
    missing = ~index.contains(keys)
    if deletions.count:
        missing |= deletions.contains(np.maximum(keys, 0))
    return missing


def refuse_missing(dataset: str, keys: Int64Array, index: SegmentIndex, deletions: Tombstones) -> None:
    """Raises NotFoundError naming the first keys that are missing."""
    missing = keys[missing_keys(keys, index, deletions)]
    if len(missing):
        named = ", ".join(str(key) for key in missing[:_NAMED_KEYS])
        more = f" and {len(missing) - _NAMED_KEYS} more" if len(missing) > _NAMED_KEYS else ""
        raise NotFoundError(
            f"dataset '{dataset}' has no samples with the keys {named}{more}: they were deleted or never existed; leave them out, "
            'or ask with on_missing="skip", which goes on without them'
        )
