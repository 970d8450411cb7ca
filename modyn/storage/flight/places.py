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
"""Part of all places that requests of one dataset may hold."""


@dataclass(slots=True, eq=False)
class _Place:
    """The place of one request. idle_since: when its client was given a message that it has not taken; None: the server works on it."""

    dataset: str
    client: str
    idle_since: float | None = None


class Places:
    """At most `number` requests have a place. One whose client has read nothing for `idle_s` seconds loses it to another that has none.

    While a client waits for a place that it may take, those that hold more places than it get no other. It waits for `idle_s` after it last asked.

    Args: busy: the start of the message of a refused request. clock: seconds, never set back. Thread-safe.
    """

    def __init__(self, number: int, idle_s: float, busy: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._number, self._idle_s, self._busy, self._clock = number, idle_s, busy, clock
        self._of_one_dataset = ceil(number * SHARE)
        self._lock = threading.Lock()  # Protects what follows, and the times of the places.
        self._held: set[_Place] = set()
        # Each still takes a thread and two chunks, so their number is bounded as well.
        self._lost: set[_Place] = set()
        # When a client was refused that has not got a place since, and for which dataset.
        self._waiting: dict[str, tuple[float, str]] = {}

    @property
    def taken(self) -> int:
        """Requests that hold a place now."""
        with self._lock:
            return len(self._held)

    @contextmanager
    def admitted(self, dataset: str, client: str = "") -> Iterator[_Place]:
        """Give a request a place while it lasts. Raises UnavailableError: there is none, the client is to try again."""
        place = _Place(dataset, client)
        self._take(place)
        try:
            yield place
        finally:
            with self._lock:
                self._held.discard(place)
                self._lost.discard(place)

    @contextmanager
    def sending(self, place: _Place) -> Iterator[None]:
        """Surround the handing of a message to the client, which may not read. Raises UnavailableError: the place was lost, and there is none."""
        with self._lock:
            place.idle_since = self._clock()
        yield
        with self._lock:
            place.idle_since = None
            lost = place in self._lost
        if lost:
            self._take(place)

    def _take(self, place: _Place) -> None:
        with self._lock:
            try:
                self._take_now(place)
            except UnavailableError:
                if len(self._waiting) < self._number:
                    self._waiting[place.client] = self._clock(), place.dataset
                raise
            self._waiting.pop(place.client, None)

    def _take_now(self, place: _Place) -> None:
        of_dataset = [other for other in self._held if other.dataset == place.dataset]
        if self._is_for_another(place):
            raise UnavailableError(self._busy)
        if len(of_dataset) >= self._of_one_dataset:
            self._free(of_dataset)
        elif len(self._held) >= self._number:
            self._free(self._held)
        self._lost.discard(place)
        self._held.add(place)

    def _is_for_another(self, place: _Place) -> bool:
        """Whether a client that holds fewer places waits for this one."""
        since = self._clock() - self._idle_s
        self._waiting = {client: asked for client, asked in self._waiting.items() if asked[0] > since}
        clients, datasets = Counter(other.client for other in self._held), Counter(other.dataset for other in self._held)
        return any(
            clients[client] < clients[place.client] and (dataset == place.dataset or datasets[dataset] < self._of_one_dataset)
            for client, (_, dataset) in self._waiting.items()
        )

    def _free(self, places: set[_Place] | list[_Place]) -> None:
        """Take a place from the request of `places` that has been idle for longest. Raises UnavailableError: none has been for long enough."""
        idle = [(place.idle_since, id(place), place) for place in places if place.idle_since is not None]
        since, _, longest = min(idle, default=(float("inf"), 0, None))
        if longest is None or self._clock() - since < self._idle_s or len(self._lost) >= self._number:
            raise UnavailableError(self._busy)
        self._held.discard(longest)
        self._lost.add(longest)
