"""One stream of a fetch: exchanges with one endpoint after another, whichever answers, until nothing is left to be asked for."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from modyn.errors import DeadlineError, ModynError, UnavailableError
from modyn.storage.flight.connections import AVOID_S, Connections
from modyn.storage.flight.protocol import (
    DESCRIPTOR,
    END,
    AnswerHead,
    Kind,
    error_from_flight,
    error_from_text,
    from_record_batch,
    keys_to_batch,
    number_to_bytes,
)

if TYPE_CHECKING:
    from modyn.storage.flight.client import Fetch, Request


class Stream:
    """A thread that reads answers and, where one request is not all, one that asks: neither has to wait for the other.

    `owed`, `waits_since` belong to the fetch and are changed under its lock. `endpoint`: the one that is asked now, by its index.
    """

    def __init__(self, fetch: Fetch, connections: Connections, preferred: int) -> None:
        self._fetch = fetch
        self._connections = connections
        self._preferred = preferred
        self.endpoint = preferred
        self._reader: Any = None
        self._abandoned = threading.Event()
        self._stall_s: float | None = None
        self._asking_failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="payloads", daemon=True)
        self.is_asking = False
        self.owed: deque[tuple[Request, int]] = deque()
        """Requests in the order sent on this exchange, each with how many of its keys were dealt with before."""
        self.waits_since: float | None = None
        """Since when the endpoint has been silent although it owes something."""

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def abandon(self) -> None:
        """Ends the exchange at once, from any thread; the stream opens no other."""
        self._abandoned.set()
        self._cancel()

    def stalled(self, stall_s: float) -> None:
        """Ends the exchange; the stream goes on with another endpoint, if there is one."""
        self._stall_s = stall_s
        self.waits_since = None
        self._cancel()

    def _cancel(self) -> None:
        reader = self._reader
        if reader is not None:
            reader.cancel()

    def _run(self) -> None:
        while not self._abandoned.is_set() and self._fetch.has_work():
            self.endpoint = self._connections.choose(self._preferred)
            try:
                self._exchange()
            except UnavailableError as error:
                if self._abandoned.is_set():
                    return
                self._connections.failed(self.endpoint, AVOID_S if self._stall_s is None else max(AVOID_S, self._stall_s))
                self._fetch.broke(self, error)
            except ModynError as error:
                self._fetch.failed(self, error)
            except BaseException as error:  # noqa: BLE001  (the consumer shall know; there is nobody else to tell)
                self._fetch.failed(self, ModynError(f"fetching payloads failed: {type(error).__name__}: {error}"))

    def _exchange(self) -> None:
        """Asks and reads until all is answered or there is a better endpoint."""
        self._stall_s, self._asking_failure = None, None
        ended_well = False
        client, options = self._connections.take(self.endpoint)
        try:
            writer, self._reader = client.do_exchange(DESCRIPTOR, options)
            try:
                ended_well = self._converse(writer)
            finally:
                # How the exchange ended is known already, from reading.
                with suppress(pa.ArrowException, OSError):
                    writer.close()
        except (pa.ArrowException, OSError) as error:
            if self._asking_failure is not None:
                raise self._asking_failure from error
            if self._stall_s is not None:
                raise DeadlineError(
                    f"nothing was heard from the payload server at {self.address} for {self._stall_s:g} s"
                ) from error
            raise error_from_flight(error, self.address) from error
        finally:
            self._reader = None
            if ended_well:
                self._connections.give_back(self.endpoint, client)
            else:
                client.close()
        if self.owed and not self._abandoned.is_set():
            raise UnavailableError(f"the payload server at {self.address} ended the exchange before it had answered")

    def _converse(self, writer: Any) -> bool:
        """False: the fetch has ended before the exchange."""
        schema = self._fetch.question.schema()
        asking: threading.Thread | None = None
        ended_well = False
        self.is_asking = True
        try:
            writer.begin(schema)
            # Another stream may have been faster and asked for the last: then this exchange ends before it has begun.
            if not self._ask(writer, schema) or self._fetch.is_cut():
                _say_end(writer, schema)
            else:
                asking = threading.Thread(target=self._keep_asking, args=(writer, schema), name="payload-keys", daemon=True)
                asking.start()
            ended_well = self._read()
        finally:
            self.is_asking = False
            self._fetch.wake()
            if not ended_well:
                self._cancel()
            if asking is not None:
                asking.join()
        return ended_well

    @property
    def address(self) -> str:
        """Of the endpoint that is asked now."""
        return self._connections.address(self.endpoint)

    def _keep_asking(self, writer: Any, schema: pa.Schema) -> None:
        try:
            # An endpoint that failed is gone back to when it may be tried again: this exchange is ended for that.
            while self._connections.choose(self._preferred) == self.endpoint and self._ask(writer, schema):
                pass
            _say_end(writer, schema)
        except (pa.ArrowException, OSError):
            self._cancel()  # What happened is what reading ends with.
        except BaseException as error:  # noqa: BLE001  (it is raised in the thread that reads)
            self._asking_failure = error
            self._cancel()

    def _ask(self, writer: Any, schema: pa.Schema) -> bool:
        """Sends one request, if there is one."""
        request = self._fetch.ask(self)
        if request is None:
            return False
        writer.write_with_metadata(keys_to_batch(request.keys[request.done :], schema), number_to_bytes(request.number))
        return True

    def _read(self) -> bool:
        """Reads to the end of the exchange. False: the fetch has ended before."""
        while not self._abandoned.is_set():
            try:
                chunk = self._reader.read_chunk()
            except StopIteration:
                return True
            head = AnswerHead.from_bytes(b"" if chunk.app_metadata is None else chunk.app_metadata.to_pybytes())
            if head.kind is Kind.GOODBYE:
                raise UnavailableError(f"the payload server at {self.address} is stopping")
            if head.kind is Kind.FAILED:
                raise error_from_text(head.error) or ModynError(
                    f"the payload server at {self.address} failed: {head.error}; run the same version of Modyn on both sides"
                )
            if head.kind is Kind.ALIVE:
                self._fetch.heard(self)
                continue
            self._fetch.deliver(self, head, from_record_batch(chunk.data, head.record_size))
            self._connections.answered(self.endpoint)
        return False


def _say_end(writer: Any, schema: pa.Schema) -> None:
    writer.write_with_metadata(keys_to_batch(np.empty(0, np.int64), schema), number_to_bytes(END))
