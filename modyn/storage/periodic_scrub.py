"""The slow scrub: finds damaged index files and rewritten data files while storage runs for months."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

from modyn.errors import ModynError
from modyn.periodic_task import PeriodicTask
from modyn.rpc.logs import get_logger
from modyn.storage.datasets import DatasetStore
from modyn.storage.ingest.file_checks import scrub_files
from modyn.storage.ingest.open_dataset import OpenDataset


@dataclass(frozen=True, slots=True)
class ScrubPace:
    """Pause after each file: `factor` times the processor time that the file took, at most `longest_s` seconds."""

    factor: float = 500.0
    longest_s: float = 60.0


FIRST_S: Final = 3600.0
"""Largest number of seconds from the start of storage to the first round. If `every_s` is longer, the first round does not wait for it, so that a
storage service that is restarted each day makes rounds too."""


class PeriodicScrub:
    """Compares the indexes and data files of all datasets with their checksums, an hour after the start and then every `every_s` seconds. Storage
    compares the indexes also when it starts.

    Problems are logged, and listed by `modyn data problems`. Files are read with `read` and not mapped into memory. If memory is short, the kernel
    then frees the pages of the scrub first, and keeps the mapped pages that are in use.
    """

    def __init__(self, store: DatasetStore, every_s: float, pace: ScrubPace = ScrubPace()) -> None:
        self._store, self._pace = store, pace
        self._closed = threading.Event()  # Ends the pause between two files.
        self._rounds = PeriodicTask("scrub", every_s, [self.scrub_all], _report, min(every_s, FIRST_S))

    def start(self) -> None:
        """Start the thread. The first round begins after a pause."""
        self._rounds.start()

    def close(self) -> None:
        """End the thread. Waits at most 5 s for the end of the file that is being read."""
        # The event ends the pause between two files first, so that the round can end.
        self._closed.set()
        self._rounds.close()

    def scrub_all(self) -> None:
        """Make one round over all datasets, until `close`."""
        for dataset in self._store.open_datasets():
            if self._closed.is_set():
                return
            try:
                self._scrub(dataset)
            except ModynError as error:
                if dataset.closed is None:  # The dataset was not deleted meanwhile.
                    get_logger("storage").warning("scrub_failed", dataset=dataset.name, error=error.message)

    def _scrub(self, dataset: OpenDataset) -> None:
        started = time.thread_time()

        def rest() -> bool:
            nonlocal started
            pause_s = min(self._pace.longest_s, self._pace.factor * (time.thread_time() - started))
            is_closed = self._closed.wait(pause_s)  # Woken by `close`; at most `longest_s`.
            started = time.thread_time()
            return not is_closed

        dataset.scrub(rest)
        for _ in scrub_files(dataset):
            if not rest():
                break


def _report(error: Exception) -> None:
    get_logger("storage").error("scrub_failed", exc_info=error)
