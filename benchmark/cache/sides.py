"""How trainings that run together are cached: the sides that figures compare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmark.cache.reading import BATCH_SIZE, Images
from modyn.cache.tier import StoreName
from modyn.dataset.cache_source import CacheSource
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetSource
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.records import TriggerSetInfo

PLAIN: Final = "plain"
OURS: Final = "ours"
SIDES: Final = (PLAIN, "static")
"""Those that can be opened."""
CACHED: Final = tuple(side for side in SIDES if side != PLAIN)
CHECKED: Final = OURS if OURS in SIDES else "static"
"""What is checked where one side is enough."""


@dataclass(frozen=True, slots=True)
class Side:
    """What all trainings of a side read, and how. Picklable: each is a process."""

    name: str
    trigger_set: TriggerSetInfo
    data: DataConfig
    source: DatasetSource

    def dataset(self, seed: int, epochs: int, batch_size: int = BATCH_SIZE) -> TriggerSetDataset:
        """The samples as the training with this seed reads them, in its own process."""
        options = LoadOptions(batch_size, drop_last=False, shuffle=True, seed=seed, epochs=epochs)
        return TriggerSetDataset(self.trigger_set, self.data, self.source.connect, options)


def open_side(name: str, found: Images, share: float, store: StoreName = "memory") -> Side:
    """A side whose cache holds nothing yet; that of another one is emptied. The one place that knows what a side's name means.

    plain: no cache. static: what is decoded first is kept, and served to all (MINIO).

    Args: share: how much of the samples would fit decoded; each side may use so many bytes. Raises: ValueError: there is no such side.
    """
    cache: CacheSource | None = None
    match name:
        case "plain":
            found.clear()
        case "static":
            cache = found.cache(store, {"decoded": found.budget(share)})
        case _:
            raise ValueError(f"there is no side '{name}'; there are {', '.join(SIDES)}")
    return Side(name, found.trigger_set, found.data, found.source(cache))
