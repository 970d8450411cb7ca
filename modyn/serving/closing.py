"""Contexts of several runs that are left at once: a service that hangs delays the end of a process once, not for each run."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

from modyn.rpc.logs import get_logger

T = TypeVar("T")


class LeftTogether:
    """A context of contexts, which are entered one after the other and left at once, each in a thread of its own.

    What has not ended after `timeout_s` is logged and waited for no longer: its thread ends with the process.
    """

    def __init__(self, what: str, timeout_s: float) -> None:
        """Args: what: the contexts are, in the log."""
        self._what, self._timeout_s = what, timeout_s
        self._entered = dict[str, AbstractContextManager[Any]]()
        self._logger = get_logger("serving")

    def enter(self, model: str, context: AbstractContextManager[T]) -> T:
        """Enter the context of a model, and return what it gives."""
        found = context.__enter__()
        self._entered[model] = context
        return found

    def __enter__(self) -> LeftTogether:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        threads = {
            model: threading.Thread(target=self._leave, args=(model, context), name=f"end-{model}", daemon=True)
            for model, context in self._entered.items()
        }
        for thread in threads.values():
            thread.start()
        give_up = time.monotonic() + self._timeout_s
        for thread in threads.values():
            thread.join(max(0.0, give_up - time.monotonic()))
        if late := [model for model, thread in threads.items() if thread.is_alive()]:
            self._logger.warning("end_not_waited_for", what=self._what, models=late, seconds=self._timeout_s)

    def _leave(self, model: str, context: AbstractContextManager[Any]) -> None:
        try:
            context.__exit__(None, None, None)
        except Exception:
            self._logger.exception("not_ended", what=self._what, model=model)
