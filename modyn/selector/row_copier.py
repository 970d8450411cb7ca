"""Work on runs behind the back of who informs them: one thread, one run at a time, each at most once in the line."""

from __future__ import annotations

import threading
from collections.abc import Callable

from modyn.errors import ModynError, NotFoundError
from modyn.records import RunId
from modyn.rpc.logs import get_logger


class RowCopier:
    """Calls `copy(run)` for each run that `wake` names, again while it says that more is left. Starts with the first of them.

    What fails is told in the log and left: whoever needs the copies makes those that are missing, and fails himself if he cannot.
    """

    def __init__(self, copy: Callable[[RunId], bool]) -> None:
        self._copy = copy
        self._changed = threading.Condition()
        self._waiting: dict[RunId, None] = {}
        self._thread: threading.Thread | None = None
        self._stopping = False

    def wake(self, run_id: RunId) -> None:
        with self._changed:
            self._waiting[run_id] = None
            if self._thread is None and not self._stopping:
                thread = threading.Thread(target=self._work, name="copy-samples", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # no thread is to be had; the next call tries again
                    get_logger("selector").warning("copies_wait", run_id=run_id, error=str(error))
                else:
                    self._thread = thread
            self._changed.notify()

    def stop(self) -> None:
        """Returns when what is being copied is done."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping)
                if self._stopping:
                    return
                run_id = next(iter(self._waiting))
                del self._waiting[run_id]
            try:
                if self._copy(run_id):
                    self.wake(run_id)
            except NotFoundError:
                get_logger("selector").debug("copy_of_deleted_run", run_id=run_id)
            except ModynError as error:
                get_logger("selector").warning("samples_not_copied", run_id=run_id, error=error.message)
            except Exception:  # noqa: BLE001  (the thread must outlive it; the trigger that needs the rows raises it)
                get_logger("selector").exception("samples_not_copied", run_id=run_id)
