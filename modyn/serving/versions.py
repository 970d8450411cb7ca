"""A model version in memory: its state, and the count of the requests that it answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from modyn.errors import ConflictError
from modyn.serving.batch_queue import BatchLimits
from modyn.serving.batcher import Batcher, BatchReport
from modyn.serving.predictor import Predictor, VersionName
from modyn.serving.signature import Tensors


class VersionState(StrEnum):
    """Where a version stands."""

    LOADING = "loading"
    WARM = "warm"
    """Loaded and warmed up; requests that name it are answered."""
    SERVING = "serving"
    RETIRING = "retiring"
    """Answers what it has begun, and takes nothing new."""
    UNLOADED = "unloaded"


TRANSITIONS: Final[dict[VersionState, frozenset[VersionState]]] = {
    VersionState.LOADING: frozenset({VersionState.WARM}),
    VersionState.WARM: frozenset({VersionState.SERVING, VersionState.RETIRING}),
    VersionState.SERVING: frozenset({VersionState.WARM, VersionState.RETIRING}),
    VersionState.RETIRING: frozenset({VersionState.UNLOADED}),
    VersionState.UNLOADED: frozenset(),
}
"""Which state may follow which."""


def check_transition(name: VersionName, before: VersionState, after: VersionState) -> None:
    """Raise ConflictError unless `after` may follow `before`."""
    if after not in TRANSITIONS[before]:
        raise ConflictError(f"{name} is {before} and cannot become {after}")


class LoadedVersion:
    """A version whose predictor is in memory, from WARM on. Unloaded when it retires and its last request has ended. Thread-safe.

    Args: report: called after each batch. took: to be called with the seconds of each request.
    """

    def __init__(
        self,
        name: VersionName,
        predictor: Predictor,
        limits: BatchLimits,
        threads: int,
        report: Callable[[BatchReport], object],
        took: Callable[[float], object],
    ) -> None:
        self.name, self.signature, self.took, self._predictor = name, predictor.signature, took, predictor
        self.batcher = Batcher(name, predictor, limits, threads=threads, report=report)
        self._state = VersionState.WARM
        self._in_flight = 0
        self._lock = threading.Lock()  # Protects the two fields above, so that none begins on a version that retires.

    @property
    def state(self) -> VersionState:
        """Where it stands."""
        return self._state

    def begin(self) -> bool:
        """Count a request that begins. Returns False, and counts nothing, if the version takes no more: choose again from the newest table."""
        with self._lock:
            if self._state not in (VersionState.WARM, VersionState.SERVING):
                return False
            self._in_flight += 1
            return True

    def end(self) -> None:
        """Count the end of a request that `begin` has counted."""
        with self._lock:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._unload_if_idle()

    def check(self, inputs: Tensors) -> None:
        """Check inputs as a request is, without predicting. Call it between `begin` and `end`. Raises InvalidArgumentError."""
        self.signature.check_inputs(inputs)
        self._predictor.check(inputs)

    def become(self, state: VersionState) -> None:
        """Change its state. Raises ConflictError: that is not allowed from where it stands."""
        with self._lock:
            if state is not self._state:
                check_transition(self.name, self._state, state)
                self._state = state
                self._unload_if_idle()

    def _unload_if_idle(self) -> None:
        """Called with the lock held."""
        if self._state is VersionState.RETIRING and self._in_flight == 0:
            self._state = VersionState.UNLOADED
            self.batcher.close()  # its last thread closes the predictor
