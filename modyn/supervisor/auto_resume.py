"""Resume runs that an outage or the end of their supervisor interrupted, automatically and after growing pauses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from prometheus_client import Gauge

from modyn.config.system import SupervisorConfig
from modyn.errors import ModynError
from modyn.rpc.logs import get_logger
from modyn.supervisor.records import Run, RunMode

FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 600.0

RUNS_TO_RESUME = Gauge(
    "modyn_supervisor_runs_to_resume",
    "Runs that should run and do not: an outage, or the end of their supervisor, interrupted them; they go on by themselves",
)

_LOG = get_logger("supervisor")


def goes_on(config: SupervisorConfig, run: Run | None = None) -> str:
    """What makes an interrupted run go on once its reason is gone; the end of the text of that reason. Args: run: None: any."""
    if config.resume_on_start or (run is not None and run.mode is RunMode.PRODUCTION):
        return "the run goes on by itself"
    if run is not None:
        return f"`modyn resume {run.run_id}` goes on with it"
    return "a production run goes on by itself, another one by `modyn resume RUN`"


class AutoResume:
    """Resumes runs after pauses that double from the first to the longest. Safe to use from any thread.

    A run that has gone on for longer than the longest pause begins with the first one again.

    Args: resume: queues the run once more; does nothing if it is not interrupted any more. clock: seconds that never jump.
    """

    def __init__(
        self,
        resume: Callable[[str], object],
        first_pause_s: float = FIRST_PAUSE_S,
        longest_pause_s: float = LONGEST_PAUSE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resume = resume
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._clock = clock
        self._lock = threading.Lock()  # Protects the fields below.
        self._resumed_at: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        self._timers: dict[str, threading.Timer] = {}
        self._closed = False

    def interrupted(self, run_id: str) -> float | None:
        """Resume the run after its next pause. Returns: the pause in seconds; None: one has begun already, or this is closed."""
        with self._lock:
            if self._closed or run_id in self._timers:
                return None
            now = self._clock()
            if now - self._resumed_at.get(run_id, now) > self._longest_pause_s:
                del self._pauses[run_id]
            pause_s = self._pauses.get(run_id, self._first_pause_s)
            self._pauses[run_id] = min(2 * pause_s, self._longest_pause_s)
            timer = self._timers[run_id] = threading.Timer(pause_s, self._resume_now, [run_id])
            timer.daemon = True
            timer.start()
            RUNS_TO_RESUME.set(len(self._timers))
        _LOG.warning("resumes_later", run_id=run_id, seconds=pause_s)
        return pause_s

    def close(self) -> None:
        """Resume nothing more."""
        with self._lock:
            self._closed = True  # For a timer that has just run out: `_resume_now` looks at it under the lock.
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()
            RUNS_TO_RESUME.set(0)

    def _resume_now(self, run_id: str) -> None:
        with self._lock:
            self._timers.pop(run_id, None)
            RUNS_TO_RESUME.set(len(self._timers))
            if self._closed:
                return
            self._resumed_at[run_id] = self._clock()
        try:
            self._resume(run_id)
        except ModynError as error:
            _LOG.warning("not_resumed", run_id=run_id, error=error.message)
            self.interrupted(run_id)
        except Exception:  # noqa: BLE001 - it would end the timer's thread unseen
            _LOG.exception("resume_crashed", run_id=run_id)
            self.interrupted(run_id)
