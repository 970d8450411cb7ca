"""A background thread that copies samples of runs into their PostgreSQL tables, one run at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from modyn.errors import ModynError, NotFoundError
from modyn.records import RunId
from modyn.rpc.logs import get_logger


class RowCopier:
    """Calls `copy(run)` for each run given to `wake`, again as long as it returns that more is left. Each run is queued at most once.

    A failure is logged and left: the trigger that needs the rows copies those that are missing, and fails if it cannot. The thread
    starts with the first run.
    """

    def __init__(self, copy: Callable[[RunId], bool]) -> None:
        self._copy = copy
        self._changed = threading.Condition()  # guards the three fields below
        self._queue: dict[RunId, None] = {}
        self._thread: threading.Thread | None = None
        self._stopping = False

    def wake(self, run_id: RunId) -> None:
        """Queue a run. Without a thread to be had, the run stays queued and the next call tries again."""
        with self._changed:
            self._queue[run_id] = None
            if self._thread is None and not self._stopping:
                thread = threading.Thread(target=self._work, name="copy-samples", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    get_logger("selector").warning("copies_wait", run_id=run_id, error=str(error))
                else:
                    self._thread = thread
            self._changed.notify()

    def stop(self) -> None:
        """End the thread after the copy in progress; queued runs are dropped. Waits for it, as it uses the database."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._stopping)
                if self._stopping:
                    return
                run_id = next(iter(self._queue))
                del self._queue[run_id]
            try:
                if self._copy(run_id):
                    self.wake(run_id)
            except NotFoundError:
                get_logger("selector").debug("copy_of_deleted_run", run_id=run_id)
            except ModynError as error:
                get_logger("selector").warning("samples_not_copied", run_id=run_id, error=error.message)
            except Exception:  # noqa: BLE001  (the thread must outlive it; the trigger that needs the rows raises it again)
                get_logger("selector").exception("samples_not_copied", run_id=run_id)
