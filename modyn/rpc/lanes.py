"""Thread pools of a server, so that followers and long calls do not delay health checks and other calls."""

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
"""Methods of followers: streams that last until their client ends them."""

CONTROL: Final = frozenset(
    {
        "/modyn.Supervisor/StopRun",
        "/modyn.Supervisor/FinishRun",
        "/modyn.Supervisor/CancelEvaluation",
        "/modyn.TrainerServer/Stop",
        "/modyn.Evaluator/Stop",
    }
)
"""Calls that end work."""

_SPARE = 4
"""Number of threads of each of these groups: health checks, control, and the refusal of followers."""


class Lanes:
    """Thread pools of one server. There is one pool each for health checks, control, calls with one answer, streams that end by themselves, and
    followers.
    """

    def __init__(self, name: str, max_threads: int, max_followers: int) -> None:
        """Args: name: prefix of the names of the threads. max_threads: largest number of threads for calls, and the same number again for streams.
        max_followers: largest number of followers at the same time.
        """

        def threads(lane: str, number: int) -> ThreadPoolExecutor:
            return ThreadPoolExecutor(number, thread_name_prefix=f"{name}-{lane}")

        self._name, self._max_followers = name, max_followers
        self.calls = threads("call", max_threads)
        self._streams = threads("stream", max_threads)
        self._followers = threads("follower", max_followers + _SPARE)
        self._health = threads("health", _SPARE)
        self._control = threads("control", _SPARE)
        # Bounds the followers. No thread waits for the semaphore, because the spare threads of the pool refuse a follower without a permit.
        self._permits = BoundedSemaphore(max_followers)

    def of(self, method: str, *, streams: bool) -> ThreadPoolExecutor:
        """Return the thread pool for a method, e.g. `/modyn.Storage/Ingest`. Args: streams: whether the method answers with a stream."""
        if method in FOLLOWED:
            return self._followers
        if method == HEALTH_CHECK:
            return self._health
        if method in CONTROL:
            return self._control
        return self._streams if streams else self.calls

    @contextmanager
    def admitted(self, method: str) -> Iterator[None]:
        """Hold a permit during a call of `method`. Raises UnavailableError: the server already has `max_followers` open streams that last until their
        client ends them.
        """
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
        """End the threads after their calls have ended."""
        # The pools are closed without waiting. The gRPC server has stopped, so there are no new calls, and the server ends running calls.
        for threads in (self.calls, self._streams, self._followers, self._health, self._control):
            threads.shutdown(wait=False)
