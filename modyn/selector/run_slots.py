"""One selection of a run at a time, each of which can be cancelled; those of other runs, and everything else, go on meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from modyn.errors import ModynError
from modyn.records import RunId
from modyn.rpc.retry import CancellationToken


class RunSlots:
    """A slot for each run, held by one thread at a time."""

    def __init__(self) -> None:
        # Guards `_held`, and is notified when a slot is free again or a waiter is cancelled.
        self._changed = threading.Condition()
        self._held: dict[RunId, CancellationToken] = {}

    @contextmanager
    def hold(self, run_id: RunId, token: CancellationToken) -> Iterator[None]:
        """Wait for the slot of the run and hold it for the length of the block. Raises the token's cause if it is cancelled before."""
        unregister = token.on_cancel(lambda _: self._wake())
        try:
            with self._changed:
                # Until the slot is free or the token is cancelled: both notify.
                self._changed.wait_for(lambda: run_id not in self._held or token.cause is not None)
                token.check()
                self._held[run_id] = token
        finally:
            unregister()
        try:
            yield
        finally:
            with self._changed:
                del self._held[run_id]
                self._changed.notify_all()

    def end(self, run_id: RunId, cause: ModynError) -> None:
        """Cancel the token of the thread that holds the slot of the run, if there is one, by `cause`, and wait until the slot is free."""
        with self._changed:
            token = self._held.get(run_id)
        if token is None:
            return
        token.cancel(cause)
        with self._changed:
            # Ends when the holder meets its cancelled token and leaves its block. Another thread may hold the slot by then.
            self._changed.wait_for(lambda: self._held.get(run_id) is not token)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
