"""Model version in memory, with its state and the number of requests that the version is answering."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from modyn.errors import ConflictError
from modyn.serving.batch_queue import BatchLimits
from modyn.serving.batcher import Batcher, BatchReport
from modyn.serving.messages.signature import Tensors
from modyn.serving.versions.predictor import Predictor, VersionName


class VersionState(StrEnum):
    """State of a version."""

    LOADING = "loading"
    WARM = "warm"
    """The version is loaded and warmed up, and answers requests that name the version."""
    SERVING = "serving"
    RETIRING = "retiring"
    """The version answers its accepted requests, and accepts no new requests."""
    UNLOADED = "unloaded"


TRANSITIONS: Final[dict[VersionState, frozenset[VersionState]]] = {
    VersionState.LOADING: frozenset({VersionState.WARM}),
    VersionState.WARM: frozenset({VersionState.SERVING, VersionState.RETIRING}),
    VersionState.SERVING: frozenset({VersionState.WARM, VersionState.RETIRING}),
    VersionState.RETIRING: frozenset({VersionState.UNLOADED}),
    VersionState.UNLOADED: frozenset(),
}
"""States that may follow each state."""


def check_transition(name: VersionName, before: VersionState, after: VersionState) -> None:
    """Raise ConflictError unless `after` may follow `before`."""
    if after not in TRANSITIONS[before]:
        raise ConflictError(f"{name} is {before} and cannot become {after}")


class LoadedVersion:
    """A version whose predictor is in memory. The version is unloaded when it retires and its last request has ended. Thread-safe.

    Args: report: called after each batch. took: function that counts the seconds of a request; the model server calls this function.
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
        self._lock = threading.Lock()  # Protects the two fields above, so that no request begins on a version that retires.

    @property
    def state(self) -> VersionState:
        """The current state."""
        return self._state

    def begin(self) -> bool:
        """Count a request that begins. Returns False if the version takes no more requests; then choose again from the newest routing table."""
        with self._lock:
            if self._state not in (VersionState.WARM, VersionState.SERVING):
                return False
            self._in_flight += 1
            return True

    def end(self) -> None:
        """Count the end of a request for which `begin` returned True."""
        with self._lock:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._unload_if_idle()

    def check(self, inputs: Tensors) -> None:
        """Check inputs as the inputs of a request are checked, without predicting. Call this method between `begin` and `end`. Raises
        InvalidArgumentError.
        """
        self.signature.check_inputs(inputs)
        self._predictor.check(inputs)

    def become(self, state: VersionState) -> None:
        """Change the state. Raises ConflictError: the current state does not allow this change."""
        with self._lock:
            if state is not self._state:
                check_transition(self.name, self._state, state)
                self._state = state
                self._unload_if_idle()

    def _unload_if_idle(self) -> None:
        """Unload the version if it retires and has no request. The caller holds the lock."""
        if self._state is VersionState.RETIRING and self._in_flight == 0:
            self._state = VersionState.UNLOADED
            self.batcher.close()  # the last thread of the batcher closes the predictor
