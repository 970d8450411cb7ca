"""The right to change a dataset, among threads and among processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from modyn.errors import UnavailableError
from modyn.storage.ingest.open_dataset import OpenDataset


@contextmanager
def hold_dataset(dataset: OpenDataset, *, patient: bool = True) -> Iterator[bool]:
    """Hold the right to change the dataset during the block: first the lock `dataset.writing`, which excludes other threads, then the advisory lock
    of the database, which excludes other processes.

    Args: patient: wait for others, at most `limits.lock_wait_s` for each of the two locks.
    Yields: False if another ingestion holds the right and `patient` is False.
    Raises: UnavailableError: another ingestion holds the right for longer.
    """
    wait_s = dataset.limits.lock_wait_s
    if not dataset.writing.acquire(timeout=wait_s if patient else 0.0):
        if patient:
            raise UnavailableError(f"dataset '{dataset.name}' has been ingested for {wait_s:.0f} s already; ask again later")
        yield False
        return
    try:
        # Only the thread with the first lock waits for the second one, so that this wait takes one connection for each dataset.
        with dataset.catalogue.database.advisory_lock(f"dataset/{dataset.row.id}", wait_s if patient else 0.0) as held:
            if patient and not held:
                raise UnavailableError(f"another process has been ingesting dataset '{dataset.name}' for {wait_s:.0f} s")
            yield held
    finally:
        dataset.writing.release()
