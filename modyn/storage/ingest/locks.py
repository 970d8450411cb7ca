"""The right to change a dataset, among threads and among processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from modyn.errors import UnavailableError
from modyn.storage.ingest.open_dataset import OpenDataset


@contextmanager
def locked(dataset: OpenDataset, *, patient: bool = True) -> Iterator[bool]:
    """Hold the right to change the dataset: `dataset.writing` among threads, then the database's advisory lock among processes.

    Args: patient: wait for others, at most `limits.lock_wait_s` for each of the two locks.
    Yields: False if another ingestion holds it and `patient` is False.
    Raises: UnavailableError: it is held for longer.
    """
    wait_s = dataset.limits.lock_wait_s
    if not dataset.writing.acquire(timeout=wait_s if patient else 0.0):
        if patient:
            raise UnavailableError(f"dataset '{dataset.name}' has been ingested for {wait_s:.0f} s already; ask again later")
        yield False
        return
    try:
        with dataset.catalogue.database.advisory_lock(f"dataset/{dataset.row.id}", wait_s if patient else 0.0) as held:
            if patient and not held:
                raise UnavailableError(f"another process has been ingesting dataset '{dataset.name}' for {wait_s:.0f} s")
            yield held
    finally:
        dataset.writing.release()
