"""Which threads serve a call, so that neither followers nor long calls keep health checks and other calls waiting."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import BoundedSemaphore
from typing import Final

from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from modyn.errors import UnavailableError

HEALTH_CHECK: Final = f"/{health.SERVICE_NAME}/Check"

FOLLOWED: Final = frozenset(
    {
        "/modyn.Storage/NewSamples",
        "/modyn.TrainerServer/Watch",
        "/modyn.Evaluator/Watch",
        "/modyn.Supervisor/Watch",
        f"/{health.SERVICE_NAME}/Watch",
        f"/{reflection.SERVICE_NAME}/ServerReflectionInfo",
    }
)
"""The streams that last for as long as their client follows them."""

CONTROL: Final = frozenset(
    {
        "/modyn.Supervisor/StopRun",
        "/modyn.Supervisor/FinishRun",
        "/modyn.Supervisor/CancelEvaluation",
        "/modyn.TrainerServer/Stop",
        "/modyn.Evaluator/Stop",
    }
)
"""The calls that ask for the end of work."""

_SPARE = 4
"""Threads, of health checks, of control, and of the refusals of followers."""


class Lanes:
    """The threads of one server: of health checks, of control, of calls with one answer, of streams that end by themselves, and of followers."""

    def __init__(self, name: str, max_threads: int, max_followers: int) -> None:
        """Args: name: begins the names of the threads. max_threads: of calls, and as many of streams. max_followers: at one time."""

        def threads(lane: str, number: int) -> ThreadPoolExecutor:
            return ThreadPoolExecutor(number, thread_name_prefix=f"{name}-{lane}")

        self._name, self._max_followers = name, max_followers
        self.calls = threads("call", max_threads)
        self._streams = threads("stream", max_threads)
        self._followers = threads("follower", max_followers + _SPARE)
        self._health = threads("health", _SPARE)
        self._control = threads("control", _SPARE)
        # Bounds followers that last. It is never waited for: the spare threads of the lane refuse those that get no permit.
        self._permits = BoundedSemaphore(max_followers)

    def of(self, method: str, *, streams: bool) -> ThreadPoolExecutor:
        """Return the threads that serve `method`, `/modyn.Storage/Ingest`, which answers with a stream or not."""
        if method in FOLLOWED:
            return self._followers
        if method == HEALTH_CHECK:
            return self._health
        if method in CONTROL:
            return self._control
        return self._streams if streams else self.calls

    @contextmanager
    def admitted(self, method: str) -> Iterator[None]:
        """Surround a call of `method`. Raises UnavailableError: it would be one follower too many."""
        if method not in FOLLOWED:
            yield
            return
        if not self._permits.acquire(blocking=False):
            raise UnavailableError(
                f"{self._name} serves {self._max_followers} followers already; end one (a `modyn watch`, say), or raise "
                f"{self._name}.max_followers in the system file"
            )
        try:
            yield
        finally:
            self._permits.release()

    def close(self) -> None:
        """End the threads, once their calls have ended."""
        # Without waiting: gRPC hands its server no call any more, and it ends those that run.
        for threads in (self.calls, self._streams, self._followers, self._health, self._control):
            threads.shutdown(wait=False)
