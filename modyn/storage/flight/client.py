"""The client that fetches payloads by key."""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Self

import numpy as np

from modyn.config.system_sections.endpoint import Endpoint
from modyn.errors import CancelledError, InvalidArgumentError
from modyn.records import Int64Array
from modyn.storage.flight.endpoints import EndpointPool
from modyn.storage.flight.fetch import Fetch, FetchLimits
from modyn.storage.flight.protocol import PayloadRequest
from modyn.storage.model.samples import OnMissing, Payloads
from modyn.storage.model.schema import DatasetSchema

__all__ = ["FetchLimits", "OnMissing", "PayloadClient", "PayloadStream", "Payloads"]

_JOIN_S = 2.0
"""Longest time in seconds that `PayloadStream.close` waits for threads."""
_CLOSED = "the payload client was closed"


class PayloadClient:
    """Fetches payloads by key. Thread-safe. A client must not be used across a fork.

    Args:
        endpoints: payload servers of one storage, all with the same data. Successive fetches begin with different servers. streams: number of
        requests of one fetch that are transferred at once, distributed over the endpoints. schema: returns the schema of a dataset by its name; None:
        the dataset has no schema, or its schema is not known yet.
    """

    def __init__(
        self,
        endpoints: Endpoint | Sequence[Endpoint],
        streams: int = 1,
        limits: FetchLimits | None = None,
        schema: Callable[[str], DatasetSchema | None] = lambda _: None,
    ) -> None:
        """Raises: InvalidArgumentError: there is no endpoint, or `streams` is less than 1."""
        endpoints = [endpoints] if isinstance(endpoints, Endpoint) else list(endpoints)
        if not endpoints or streams < 1:
            raise InvalidArgumentError(
                f"a payload client needs at least one endpoint and one stream, not {len(endpoints)} and {streams}"
            )
        self._name = uuid.uuid4().hex
        self._pool = EndpointPool(endpoints)
        self._streams = streams
        self._limits = limits or FetchLimits()
        self._ask_schema = schema
        self._lock = threading.Lock()  # Protects the list of fetches, so that `close` ends every fetch.
        self._closed = False
        self._fetches: weakref.WeakSet[Fetch] = weakref.WeakSet()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel all fetches, and refuse further ones."""
        with self._lock:
            self._closed = True
            fetches = list(self._fetches)
        # The fetches end before the pool closes, because their threads use its connections. There is no wait for the threads, because a call that
        # the server has not opened cannot be cancelled. If a thread returns a connection to the closed pool, the pool closes the connection.
        for fetch in fetches:
            fetch.end(CancelledError(_CLOSED))
            fetch.abandon_threads()
        self._pool.close()

    def schema(self, dataset: str) -> DatasetSchema | None:
        """Return the schema of a dataset; None: there is no schema, or it is not known yet. Raises: NotFoundError. UnavailableError: storage does not
        respond.
        """
        return self._ask_schema(dataset)

    def fetch(
        self,
        dataset: str,
        keys: Int64Array,
        on_missing: OnMissing = "raise",
        deadline_s: float | None = None,
        identity: str = "",
        *,
        with_bytes: bool = True,
    ) -> PayloadStream:
        """Fetch the samples of `keys` in the given order, including duplicates, as they arrive.

        Args:
            keys: int64 (n,).
            on_missing: "skip" leaves out keys that were deleted; keys that never existed are an error.
            deadline_s: seconds that `next` may wait for one batch of samples.
            identity: identity of the registration that the keys belong to, as in `DatasetInfo`; empty: any.
            with_bytes: False: the servers read no file, and payloads have no bytes.

        Raises, from `next`, after the samples before the error:
            NotFoundError: there is no dataset of this name and identity, or the dataset has no sample with one of the keys; the message names the
            first missing keys. DataError: a file cannot be read (the message names file and offset), or a sample is too large to be sent (the message
            names the key). UnavailableError: no endpoint answered for `FetchLimits.retry_s`, or the index of each answering endpoint is too old for
            the keys. DeadlineError: `deadline_s` has passed; the message names the sample and the endpoints that should send it. CancelledError: the
            fetch was cancelled or the client closed.
        """
        asked = PayloadRequest(dataset, on_missing, np.ascontiguousarray(keys, np.int64), identity, self._name, with_bytes)
        fetch = Fetch(asked, self._pool, self._streams, self._limits, deadline_s)
        with self._lock:
            if self._closed:
                raise CancelledError(_CLOSED)
            self._fetches.add(fetch)
        return PayloadStream(fetch)


class PayloadStream(Iterator[Payloads]):
    """The samples of a fetch, for one consumer. Any thread may call `cancel`.

    The first `next` begins the fetch. If the stream is closed or dropped, the fetch ends immediately, also at the servers.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    def __next__(self) -> Payloads:
        arrived = self._fetch.next()
        if arrived is None:
            raise StopIteration
        return arrived

    def cancel(self) -> None:
        """Make `next` raise CancelledError, even if it is waiting."""
        self._fetch.end(CancelledError("the fetch was cancelled"))

    def close(self) -> None:
        """End the fetch and wait for its threads."""
        self._fetch.end(None)
        # The wait ends when all threads have ended, which `end` has requested, or after `_JOIN_S` seconds in total.
        self._fetch.join(_JOIN_S)

    def __del__(self) -> None:
        self._fetch.end(None)
