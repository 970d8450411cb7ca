"""Watchers: threads that index new data in a dataset's folder without a request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from modyn.errors import ModynError, NotFoundError
from modyn.rpc.logs import get_logger
from modyn.storage.ingest.open_dataset import OpenDataset

_WORK_SHARE = 0.2
"""Largest share of a watcher's time that scans may take. A huge folder is therefore scanned less often than configured."""


class Watcher:
    """A thread that calls `scan` every `interval_s` seconds until `stop`, so that new files are indexed without a request. Errors are logged
    once and tried again at the next scan."""

    def __init__(self, dataset: OpenDataset, scan: Callable[[OpenDataset], None], interval_s: float) -> None:
        self._dataset = dataset
        self._scan = scan
        self._interval_s = interval_s
        self._stop = threading.Event()  # Ends the pause between two scans. A running scan is not interrupted.
        self._thread = threading.Thread(target=self._run, name=f"watch-{dataset.name}", daemon=True)
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Make the thread end after the running scan."""
        self._stop.set()

    def stop(self) -> None:
        """Stop watching. The method returns when the running scan has ended, or after 10 s."""
        self.ask_to_stop()
        # If a scan finds that the dataset was deleted, the watcher's own thread calls `stop`, and a thread cannot join itself.
        if threading.current_thread() is not self._thread:
            self._thread.join(10.0)

    def _run(self) -> None:
        logger = get_logger("storage")
        logged = ""
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                self._scan(self._dataset)
                logged = ""
            except ModynError as error:
                if self._stop.is_set():
                    return
                if error.message != logged:
                    logger.error("watch_failed", dataset=self._dataset.name, error=error.message, reason=error.reason)
                logged = error.message
                if isinstance(error, NotFoundError) and self._dataset.closed:
                    return
            except Exception as error:
                # If the thread ended, new files would never be indexed, without an error.
                if repr(error) != logged:
                    logger.exception("watch_failed", dataset=self._dataset.name)
                logged = repr(error)
            # `ask_to_stop` ends the pause.
            self._stop.wait(pause_s(self._interval_s, time.monotonic() - started))


def pause_s(interval_s: float, scan_s: float) -> float:
    """Return the seconds until the next scan, after a scan that took `scan_s` seconds.

    >>> pause_s(1.0, 0.01), pause_s(1.0, 2.0)
    (1.0, 8.0)
    """
    return max(interval_s, scan_s * (1 / _WORK_SHARE - 1))
