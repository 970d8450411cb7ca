"""The journal of a run that takes steps of proactive training: what it says of them is written while the run goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from modyn.supervisor.journal import RunJournal
from modyn.supervisor.records import TriggerRecord

_ENDS: Final = frozenset({"selected_none", "trained", "untrained"})
_OF_TRIGGERS: Final = _ENDS | {"selecting", "training"}
_COMPANY_S: Final = 0.02
"""How long the end of a trigger waits for the begin of the next one, to be written with it."""


class DeferredJournal:
    """Writes what a `RunJournal` is given, in this order: of online triggers by a thread of its own, all else at once, behind what waits.

    Versions come several times a second, and each transaction waits for the disk of PostgreSQL. A run that is killed before a write was made repeats
    the step that it reports, and finds its result by the number of the trigger: the trigger set at the selector, the model at model storage. Nothing
    is trained of which the journal does not know that its trigger fired: `training` waits for all before it. The error of a write is raised by the
    next one, and no write behind it is made.
    """

    def __init__(self, journal: RunJournal) -> None:
        """Args: journal: its writes are retried. Its methods may be called by any thread, those of triggers by one."""
        self._journal = journal
        # Guards the fields below. Notified when a write waits or a thread waits for it, and when writes were made.
        self._changed = threading.Condition()
        self._waiting: list[tuple[str, Callable[[RunJournal], None]]] = []
        """With the names of their methods; they stay until they are made."""
        self._urgent = 0
        """Threads that wait until all is written."""
        self._closed = False
        self._failed: BaseException | None = None
        self._writer: threading.Thread | None = None

    @classmethod
    def of(cls, journal: RunJournal, *, online: bool) -> tuple[RunJournal, Callable[[], None]]:
        """The journal of a run, and what waits for its last write at the end of the run, and raises nothing. Args: online: it may take steps; where
        it takes none, `journal` is as good."""
        if not online:
            return journal, lambda: None
        deferred = cls(journal)
        return cast("RunJournal", deferred), deferred._close

    def __getattr__(self, name: str) -> Any:
        return partial(self._of_trigger if name in _OF_TRIGGERS else self._at_once, name)

    def _of_trigger(self, name: str, trigger: TriggerRecord, *others: object) -> None:
        if not trigger.online:
            self._at_once(name, trigger, *others)
            return
        if self._failed is not None or name == "training":
            self._wait()
        if self._writer is None:
            self._writer = threading.Thread(target=self._work, name="journal", daemon=True)
            self._writer.start()
        with self._changed:
            self._waiting.append((name, lambda journal: getattr(journal, name)(trigger, *others)))
            self._changed.notify_all()

    def _at_once(self, name: str, *values: Any, **named: Any) -> Any:
        self._wait()
        return getattr(self._journal, name)(*values, **named)

    def _wait(self) -> None:
        """Wait until all is written that was given before. Raises: the error of the first write that failed."""
        with self._changed:
            self._urgent += 1
            self._changed.notify_all()
            # Ends: the retrier of the journal gives up after the run's patience, and when the token is cancelled.
            self._changed.wait_for(lambda: not self._waiting or self._failed is not None)
            self._urgent -= 1
            if self._failed is not None:
                raise self._failed

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting or self._failed is not None:
                    return
                if len(self._waiting) == 1 and self._waiting[0][0] in _ENDS:
                    self._changed.wait_for(lambda: len(self._waiting) > 1 or self._urgent or self._closed, _COMPANY_S)
                writes = [write for _, write in self._waiting]
            try:
                self._journal.together(writes)
            except BaseException as error:  # noqa: BLE001 - raised by the run's thread
                self._failed = error
            with self._changed:
                del self._waiting[: len(writes)]
                self._changed.notify_all()

    def _close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._writer is not None:
            self._writer.join()
