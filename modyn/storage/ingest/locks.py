"""The locks that a thread needs to change a dataset. The locks exclude other threads and other processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from modyn.errors import UnavailableError
from modyn.storage.ingest.open_dataset import OpenDataset


@contextmanager
def hold_dataset(dataset: OpenDataset, *, patient: bool = True) -> Iterator[bool]:
    """Hold the locks of the dataset during the block: first the lock `dataset.writing`, which excludes other threads, then the advisory lock of the
    database, which excludes other processes.

    Args: patient: whether to wait for each of the two locks, at most `limits.lock_wait_s` seconds.
    Yields: True if both locks are held. False if another ingestion holds a lock and `patient` is False.
    Raises: UnavailableError: another ingestion holds a lock for longer.
    """
    wait_s = dataset.limits.lock_wait_s
    if not dataset.writing.acquire(timeout=wait_s if patient else 0.0):
        if patient:
            raise UnavailableError(f"dataset '{dataset.name}' has been ingested for {wait_s:.0f} s already; ask again later")
        yield False
        return
    try:
        # Only the thread with the first lock waits for the second lock, so the wait needs at most one connection for each dataset.
        with dataset.catalogue.database.advisory_lock(f"dataset/{dataset.row.id}", wait_s if patient else 0.0) as held:
            if patient and not held:
                raise UnavailableError(f"another process has been ingesting dataset '{dataset.name}' for {wait_s:.0f} s")
            yield held
    finally:
        dataset.writing.release()
