"""Admission of requests to a payload server. Idle requests, and many requests of one dataset or client, do not block other requests."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import Final

from modyn.errors import UnavailableError

SHARE: Final = 0.75
"""Largest share of all permits for the requests of one dataset."""


@dataclass(slots=True, eq=False)
class _Permit:
    """The permit of one request. idle_since: time since which a message waits until the client reads it; None: no message waits."""

    dataset: str
    client: str
    idle_since: float | None = None


class AdmissionControl:
    """Gives permits to at most `number` requests. Thread-safe. If the client of a request reads nothing for `idle_s` seconds, another request may get
    the permit of this request. While a refused client waits, clients with more permits get no further permit, if they want the same dataset or if
    the limit of the waiting client's dataset allows a permit. A refused client counts as waiting for `idle_s` seconds.

    Args: busy: message to a refused request. clock: returns seconds, monotonic.
    """

    def __init__(self, number: int, idle_s: float, busy: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._number, self._idle_s, self._busy, self._clock = number, idle_s, busy, clock
        self._of_one_dataset = ceil(number * SHARE)
        self._lock = threading.Lock()  # Protects the fields below, and the times of the permits.
        self._held: set[_Permit] = set()
        # Requests that lost their permits still use a thread and two chunks each, so the number of such requests is bounded too.
        self._lost: set[_Permit] = set()
        # For each client that was refused and has had no permit since: time of the refusal, and dataset.
        self._waiting: dict[str, tuple[float, str]] = {}

    @property
    def num_held(self) -> int:
        """Number of requests that have a permit now."""
        with self._lock:
            return len(self._held)

    @contextmanager
    def admit(self, dataset: str, client: str = "") -> Iterator[_Permit]:
        """Hold a permit for a request during the block. Raises UnavailableError: no permit is free, and the client must try again."""
        permit = _Permit(dataset, client)
        self._take(permit)
        try:
            yield permit
        finally:
            with self._lock:
                self._held.discard(permit)
                self._lost.discard(permit)

    @contextmanager
    def awaiting_client(self, permit: _Permit) -> Iterator[None]:
        """Mark the request as idle during the block, while its message waits for the client. Raises UnavailableError: the request lost its permit,
        and no other permit is free.
        """
        with self._lock:
            permit.idle_since = self._clock()
        yield
        with self._lock:
            permit.idle_since = None
            lost = permit in self._lost
        if lost:
            self._take(permit)

    def _take(self, permit: _Permit) -> None:
        with self._lock:
            try:
                self._take_locked(permit)
            except UnavailableError:
                # The number of names is bounded, because clients choose their names.
                if len(self._waiting) < self._number:
                    self._waiting[permit.client] = self._clock(), permit.dataset
                raise
            self._waiting.pop(permit.client, None)

    def _take_locked(self, permit: _Permit) -> None:
        of_dataset = [other for other in self._held if other.dataset == permit.dataset]
        if self._is_for_another(permit):
            raise UnavailableError(self._busy)
        if len(of_dataset) >= self._of_one_dataset:
            self._free(of_dataset)
        elif len(self._held) >= self._number:
            self._free(self._held)
        self._lost.discard(permit)
        self._held.add(permit)

    def _is_for_another(self, permit: _Permit) -> bool:
        """Whether a client with fewer permits than the client of `permit` waits for a permit."""
        since = self._clock() - self._idle_s
        self._waiting = {client: asked for client, asked in self._waiting.items() if asked[0] > since}
        clients, datasets = Counter(other.client for other in self._held), Counter(other.dataset for other in self._held)
        return any(
            clients[client] < clients[permit.client] and (dataset == permit.dataset or datasets[dataset] < self._of_one_dataset)
            for client, (_, dataset) in self._waiting.items()
        )

    def _free(self, permits: set[_Permit] | list[_Permit]) -> None:
        """Withdraw the permit of the request in `permits` that has been idle longest. Raises UnavailableError: no request was idle long enough."""
        idle = [(permit.idle_since, id(permit), permit) for permit in permits if permit.idle_since is not None]
        since, _, longest = min(idle, default=(float("inf"), 0, None))
        if longest is None or self._clock() - since < self._idle_s or len(self._lost) >= self._number:
            raise UnavailableError(self._busy)
        self._held.discard(longest)
        self._lost.add(longest)
