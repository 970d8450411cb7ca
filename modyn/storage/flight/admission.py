"""Which requests a payload server answers at once, so that neither idle ones nor those of one dataset or client keep the others out."""

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
"""Share of all permits that requests of one dataset may hold."""


@dataclass(slots=True, eq=False)
class _Permit:
    """The permit of one request. idle_since: when its client was given a message that it has not taken; None: the server works on it."""

    dataset: str
    client: str
    idle_since: float | None = None


class AdmissionControl:
    """At most `number` requests have a permit. One whose client has read nothing for `idle_s` seconds loses it to another that has none.

    While a client waits for a permit that it may take, those that hold more permits than it get no other. It waits for `idle_s` after it last asked.

    Args: busy: the start of the message of a refused request. clock: seconds, never set back. Thread-safe.
    """

    def __init__(self, number: int, idle_s: float, busy: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._number, self._idle_s, self._busy, self._clock = number, idle_s, busy, clock
        self._of_one_dataset = ceil(number * SHARE)
        self._lock = threading.Lock()  # Protects what follows, and the times of the permits.
        self._held: set[_Permit] = set()
        # Each still takes a thread and two chunks, so their number is bounded as well.
        self._lost: set[_Permit] = set()
        # When a client was refused that has not got a permit since, and for which dataset.
        self._waiting: dict[str, tuple[float, str]] = {}

    @property
    def num_held(self) -> int:
        """Requests that hold a permit now."""
        with self._lock:
            return len(self._held)

    @contextmanager
    def admitted(self, dataset: str, client: str = "") -> Iterator[_Permit]:
        """Give a request a permit while it lasts. Raises UnavailableError: there is none, the client is to try again."""
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
        """Surround the handing of a message to the client, which may not read. Raises UnavailableError: the permit was lost, and there is none."""
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
        """Whether a client that holds fewer permits waits for this one."""
        since = self._clock() - self._idle_s
        self._waiting = {client: asked for client, asked in self._waiting.items() if asked[0] > since}
        clients, datasets = Counter(other.client for other in self._held), Counter(other.dataset for other in self._held)
        return any(
            clients[client] < clients[permit.client] and (dataset == permit.dataset or datasets[dataset] < self._of_one_dataset)
            for client, (_, dataset) in self._waiting.items()
        )

    def _free(self, permits: set[_Permit] | list[_Permit]) -> None:
        """Take a permit from the request of `permits` that has been idle for longest. Raises UnavailableError: none has been for long enough."""
        idle = [(permit.idle_since, id(permit), permit) for permit in permits if permit.idle_since is not None]
        since, _, longest = min(idle, default=(float("inf"), 0, None))
        if longest is None or self._clock() - since < self._idle_s or len(self._lost) >= self._number:
            raise UnavailableError(self._busy)
        self._held.discard(longest)
        self._lost.add(longest)
