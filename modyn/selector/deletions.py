"""Read the deleted keys of a dataset from storage for the selection of a trigger set."""

from __future__ import annotations

import threading
from collections.abc import Callable

from modyn._core import KeySet
from modyn.errors import NotFoundError
from modyn.selector.window import NO_KEYS
from modyn.storage.client import StorageClient

DeletedKeys = Callable[[str, str], KeySet]
"""Returns all deleted keys of the dataset with this name and identity. An empty identity accepts any dataset. Raises: NotFoundError: the dataset does
not exist. UnavailableError: storage cannot be reached.
"""

_MOST_DATASETS = 8
"""Number of datasets whose deleted keys are cached: the most recently used datasets."""


class StorageDeletions:
    """Asks storage for the number of deleted keys, and for the keys only if this number has changed."""

    def __init__(self, storage: StorageClient) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        """Guards `_held`. No thread holds this lock during a call to storage, because other runs would wait for the response. Two threads may
        therefore fetch the same deletions at once; then the later response is kept.
        """
        self._held: dict[str, KeySet] = {}
        """Deleted keys by identity of the dataset; a name may later belong to another dataset."""

    def __call__(self, dataset: str, identity: str) -> KeySet:
        """Return all deleted keys of a dataset; see `DeletedKeys`."""
        info = self._storage.dataset(dataset)
        if identity not in ("", info.identity):
            raise NotFoundError(
                f"dataset '{dataset}' was deleted, and another was registered under its name: the keys of this run mean other samples there; "
                "submit the pipeline again"
            )
        with self._lock:
            keys = self._held.get(info.identity, NO_KEYS)
        # Deletions are never undone, so equal numbers mean equal sets.
        if len(keys) != info.num_deleted:
            keys = self._storage.deleted_keys(dataset, info.identity)
        with self._lock:
            # Adding the set at the end keeps the dict in the order of use. The loop below drops the sets that were used least recently.
            self._held.pop(info.identity, None)
            self._held[info.identity] = keys
            while len(self._held) > _MOST_DATASETS:
                del self._held[next(iter(self._held))]
        return keys
