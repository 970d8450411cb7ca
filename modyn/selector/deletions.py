"""Which samples of a dataset are deleted, as storage says when a trigger selects."""

from __future__ import annotations

import threading
from collections.abc import Callable

from modyn._core import KeySet
from modyn.errors import NotFoundError
from modyn.selector.window import NO_KEYS
from modyn.storage.client import StorageClient

DeletedKeys = Callable[[str, str], KeySet]
"""Returns all deleted keys of the dataset of this name and identity (empty: any). Raises NotFoundError: there is no such dataset.
UnavailableError: that cannot be said now."""

_MOST_DATASETS = 8
"""Sets that are kept, of the datasets asked for last."""


class StorageDeletions:
    """Asks storage for the number of deleted keys, and for the keys only when the number is another one than at the last time."""

    def __init__(self, storage: StorageClient) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        """Guards `_held`; not held during calls."""
        self._held: dict[str, KeySet] = {}
        """By identity of the dataset: a name may come to mean another one."""

    def __call__(self, dataset: str, identity: str) -> KeySet:
        """Return all deleted keys of a dataset, as `DeletedKeys`."""
        info = self._storage.dataset(dataset)
        if identity not in ("", info.identity):
            raise NotFoundError(
                f"dataset '{dataset}' was deleted, and another was registered under its name: the keys of this run mean other samples there; "
                "submit the pipeline again"
            )
        with self._lock:
            keys = self._held.get(info.identity, NO_KEYS)
        if len(keys) != info.num_deleted:
            keys = self._storage.deleted_keys(dataset, info.identity)
        with self._lock:
            self._held.pop(info.identity, None)
            self._held[info.identity] = keys
            while len(self._held) > _MOST_DATASETS:
                del self._held[next(iter(self._held))]
        return keys
