"""Warn the users of a run if the checks of the run are slower than the arrival of data, or if all arriving samples are late."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from prometheus_client import Gauge

from modyn.config.durations import format_timestamp
from modyn.errors import ModynError
from modyn.records import SampleBatch
from modyn.rpc.logs import get_logger
from modyn.supervisor.journal.cursor import Cursor
from modyn.supervisor.journal.journal import RunJournal

SAMPLES_WAITING = Gauge(
    "modyn_supervisor_samples_waiting",
    "Samples that have arrived and that a production run has not decided on, when last looked at",
    ["run"],
)

_LOG = get_logger("supervisor")


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    next_key: int
    position: int
    check_seconds: float


class CheckLag:
    """Warns while the checks of a production run take longer than the arrival of the run's data.

    If checks are slow, samples wait, because checks run one after another, in the order of the stream. The class polls the dataset from time to
    time. The warning starts if, between two polls, more samples arrive than the run decides on, and checks take more than half of the time. The
    warning ends when the number of waiting samples is at most the number that the run decides on between two polls. A run that catches up with
    samples from before its start gets no warning.
    """

    def __init__(
        self, run_id: str, next_key: Callable[[], int], look_every_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Args: next_key: returns the dataset's next key. look_every_s: shortest time between two polls, in seconds. clock: monotonic clock in
        seconds.
        """
        self._run_id = run_id
        self._next_key = next_key
        self._look_every_s = look_every_s
        self._clock = clock
        self._last: _Look | None = None
        self._warned = 0
        """Number of waiting samples in the text of the warning; 0 without a warning."""

    @property
    def warning(self) -> str:
        """The warning, or an empty text."""
        if not self._warned:
            return ""
        return (
            f"checks take longer than the data takes to arrive: {self._warned:,} samples wait; check less often "
            "(evaluation_interval_data_points or evaluation_interval of the trigger), or compare fewer samples (sample_size)"
        )

    def look(self, cursor: Cursor, check_seconds: float, *, batch_ends: bool = False) -> bool:
        """Compare the number of arrived samples with the cursor, unless the last comparison is recent. Return whether the warning changed.

        Args: check_seconds: time of all checks of the run's attempt. batch_ends: whether a batch ends here. In this case, an existing warning is
        always checked, because the next batch may arrive late.
        """
        now, last = self._clock(), self._last
        if last is not None and now - last.at < self._look_every_s and not (batch_ends and self._warned):
            return False
        try:
            next_key = self._next_key()
        except ModynError:
            return False  # An outage of storage is ignored here, because the run's stream notices a long outage.
        self._last = _Look(now, next_key, cursor.position, check_seconds)
        waiting = next_key if cursor.last_key is None else next_key - 1 - cursor.last_key
        SAMPLES_WAITING.labels(self._run_id).set(waiting)
        before = self._warned
        if last is not None:
            self._judge(last, self._last, waiting)
        return self._warned != before

    def close(self) -> None:
        """Remove the run from the metrics."""
        if self._last is not None:
            SAMPLES_WAITING.remove(self._run_id)

    def _judge(self, last: _Look, now: _Look, waiting: int) -> None:
        decided, arrived = now.position - last.position, now.next_key - last.next_key
        checks_take_most = now.check_seconds - last.check_seconds > (now.at - last.at) / 2
        if waiting <= decided:
            self._warned = 0
        # The number in the warning changes only when the number has doubled, because each change writes an event.
        elif self._warned or (arrived > decided and checks_take_most):
            self._warned = waiting if waiting >= 2 * self._warned else self._warned


class LateSamples:
    """Warns if all samples after the sample with the newest timestamp are older than this sample, and their timestamps span a given time. The cause
    is often a sample with a timestamp in the future.

    >>> late = LateSamples(None)
    >>> times = np.array([0, 1000, 11, 15, 21])
    >>> late.observe(SampleBatch(times, times, times))
    >>> late.warning(10).partition(",")[0]
    'all samples that arrive are older than the newest one before them'
    >>> late.warning(11)
    ''
    """

    def __init__(self, newest: int | None) -> None:
        """Args: newest: the largest timestamp of the stream so far; None if there is no sample."""
        self._newest = newest
        self._late: tuple[int, int] | None = None
        """Smallest and largest timestamp of the samples since the sample with the newest timestamp."""

    def observe(self, samples: SampleBatch) -> None:
        """Receive the next samples of the stream, or an empty batch."""
        late = samples.timestamps
        if not len(late):
            return
        if self._newest is None or late.max() >= self._newest:
            self._newest, self._late = int(late.max()), None
            late = late[np.flatnonzero(late == self._newest)[-1] + 1 :]
        if len(late):
            ends = [int(late.min()), int(late.max()), *(self._late or ())]
            self._late = min(ends), max(ends)

    def warning(self, span_s: int) -> str:
        """Return the warning, or an empty text. Args: span_s: seconds that the late samples must span."""
        if self._late is None or self._newest is None or self._late[1] - self._late[0] < span_s:
            return ""
        newest = format_timestamp(self._newest)
        return (
            f"all samples that arrive are older than the newest one before them, of {newest}: until others reach that time, models count as "
            "trained on data up to then, and a trigger policy that uses time may not fire. If a wrong timestamp or start_timestamp is the "
            "reason, correct it and submit the pipeline again"
        )


class ShownWarning:
    """The warning that a run shows its users."""

    def __init__(self, journal: RunJournal) -> None:
        self._journal = journal
        self._shown = ""

    def show(self, *warnings: str) -> None:
        """Journal the warnings when they change. Args: warnings: texts; empty texts are left out."""
        warning = "\n".join(dict.fromkeys(filter(None, warnings)))
        if warning != self._shown:
            self._shown = warning
            _LOG.warning("trigger_warning", run_id=self._journal.run_id, warning=warning)
            self._journal.warn(warning)
