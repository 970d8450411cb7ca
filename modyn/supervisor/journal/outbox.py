"""Changes of a run's journal that a separate thread writes, so that online steps do not wait for the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from modyn.supervisor.journal.write import Write

Change = Callable[[Write], None]
"""Makes one change within a transaction. The change may be called again if it is uncertain whether the transaction was committed."""

_NEXT_TRIGGER_S: Final = 0.02
"""Seconds for which the end of a trigger waits for the start of the next trigger, so that both share one transaction."""


class Outbox:
    """Writes changes in their order, in a separate thread; changes that wait together share a transaction.

    Online steps make several models per second, and PostgreSQL waits for the disk at each commit. If a run is killed before a change is written, the
    resumed run repeats the step that the change reports. The repeated step finds the earlier result by the trigger's number: the trigger set at the
    selector, and the model at model storage. After a failed write, nothing more is written, and later calls of `put` or `flush` raise this error.

    One thread calls `put`; any thread may call `flush`.
    """

    def __init__(self, write: Callable[[Sequence[Change]], None]) -> None:
        """Args: write: makes all changes in one transaction, and repeats the transaction while PostgreSQL cannot be reached."""
        self._write = write
        # Guards the fields below. Notified by `put`, `flush` and `close`, which wake the writer, and after each write, which wakes `flush`.
        self._changed = threading.Condition()
        self._waiting: list[Change] = []
        """Changes that are queued or are being written, in order."""
        self._ends_trigger = False
        """Whether the newest change ends a trigger."""
        self._num_flushing = 0
        """Number of threads that wait in `flush`. While a thread waits in `flush`, the writer does not wait for the next trigger."""
        self._closed = False
        self._error: BaseException | None = None
        """Error of the failed write; the writer has ended."""
        self._writer: threading.Thread | None = None

    def put(self, change: Change, *, ends_trigger: bool = False) -> None:
        """Queue a change. Args: ends_trigger: whether the first change of the next trigger follows soon. Raises: the error of an earlier write."""
        with self._changed:
            if self._error is not None:
                raise self._error
            if self._writer is None:
                # The writer starts with the first change, so that a run without online triggers has no writer thread.
                self._writer = threading.Thread(target=self._write_waiting, name="journal", daemon=True)
                self._writer.start()
            self._waiting.append(change)
            self._ends_trigger = ends_trigger
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until every queued change is written. Raises: the error of the first write that failed."""
        with self._changed:
            self._num_flushing += 1
            self._changed.notify_all()
            # Woken after each write. The wait ends in every case, because `write` gives up after the run's patience or when the run's token is
            # cancelled.
            self._changed.wait_for(lambda: not self._waiting or self._error is not None)
            self._num_flushing -= 1
            if self._error is not None:
                raise self._error

    def close(self) -> None:
        """Wait for the last write and end the thread. No error is raised."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._writer is not None:
            # The join has no time limit. The writer writes the waiting changes first, and `write` gives up as described in `flush`.
            self._writer.join()

    def _write_waiting(self) -> None:
        while True:
            with self._changed:
                # Woken by `put` and `close`.
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting or self._error is not None:
                    return
                if self._ends_trigger and len(self._waiting) == 1:
                    # Woken by the next `put`, by `flush` and by `close`.
                    self._changed.wait_for(lambda: len(self._waiting) > 1 or self._num_flushing or self._closed, _NEXT_TRIGGER_S)
                # The changes stay in the list during the write, so that `flush` waits for the commit. `put` appends later changes.
                changes = list(self._waiting)
            error: BaseException | None = None
            # The lock is not held here: `put` must not wait for the disk.
            try:
                self._write(changes)
            except BaseException as raised:  # noqa: BLE001 - the next `put` or `flush` raises the error in the run's thread
                error = raised
            with self._changed:
                self._error = error
                del self._waiting[: len(changes)]  # After an error too: the changes will never be written.
                self._changed.notify_all()
