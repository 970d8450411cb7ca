"""How far a run is behind data that keep arriving, and whether its checks are the reason. Checks are made one after the other in the order of the
stream, so they never pile up; what piles up are samples."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import Gauge

from modyn.errors import ModynError
from modyn.supervisor.cursor import Cursor

SAMPLES_WAITING = Gauge(
    "modyn_supervisor_samples_waiting",
    "Samples that have arrived and that a production run has not decided on, when last looked at",
    ["run"],
)


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    next_key: int
    position: int
    check_seconds: float


class CheckLag:
    """Follows a production run while it processes batches, and warns while its checks take longer than the data takes to arrive.

    That is so when, between two looks, more samples arrive than are decided on and checks take more than half of the time; it is over when no
    more samples wait than are decided on between two looks. A run that catches up with what its dataset held at the start is not warned.
    """

    def __init__(
        self, run_id: str, next_key: Callable[[], int], look_every_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Args: next_key: asks storage for the key of the next new sample of the run's dataset. look_every_s: it is asked no more often. clock:
        seconds that never jump."""
        self._run_id = run_id
        self._next_key = next_key
        self._look_every_s = look_every_s
        self._clock = clock
        self._last: _Look | None = None
        self._told = 0
        """How many samples the warning says wait; 0: it warns of nothing."""

    @property
    def warning(self) -> str:
        """What the user of the run should know; empty: nothing."""
        if not self._told:
            return ""
        return (
            f"checks take longer than the data takes to arrive: {self._told:,} samples wait; check less often "
            "(evaluation_interval_data_points or evaluation_interval of the trigger), or compare fewer samples (sample_size)"
        )

    def look(self, cursor: Cursor, check_seconds: float, *, batch_ends: bool = False) -> bool:
        """Compare what has arrived with where the run stands, unless that was done a short time ago. Returns whether the warning changed.

        Args: check_seconds: that checks have taken so far, over all of the run's present attempt. batch_ends: no other look may come before new
        samples do, so it is not left out while there is a warning that may be over.
        """
        now, last = self._clock(), self._last
        if last is not None and now - last.at < self._look_every_s and not (batch_ends and self._told):
            return False
        try:
            next_key = self._next_key()
        except ModynError:
            return False  # The run's stream finds out whether storage stays away.
        self._last = _Look(now, next_key, cursor.position, check_seconds)
        waiting = next_key if cursor.last_key is None else next_key - 1 - cursor.last_key
        SAMPLES_WAITING.labels(self._run_id).set(waiting)
        before = self._told
        if last is not None:
            self._judge(last, self._last, waiting)
        return self._told != before

    def close(self) -> None:
        """Say nothing more of the run."""
        if self._last is not None:
            SAMPLES_WAITING.remove(self._run_id)

    def _judge(self, last: _Look, now: _Look, waiting: int) -> None:
        decided, arrived = now.position - last.position, now.next_key - last.next_key
        checks_take_most = now.check_seconds - last.check_seconds > (now.at - last.at) / 2
        if waiting <= decided:
            self._told = 0
        # One that is told has its number renewed only when it has doubled: each is an event.
        elif self._told or (arrived > decided and checks_take_most):
            self._told = waiting if waiting >= 2 * self._told else self._told
