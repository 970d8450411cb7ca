"""The Arrow Flight face of storage: payloads by key. What is said in an exchange stands in `flight_messages`.

An exchange is served by two threads: the one that Flight gave it reads requests and gathers, the other sends. Between them waits one
piece, so that a client that does not read stalls the gathering, and no request is read before the one before it is gathered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import pyarrow as pa
from prometheus_client import Histogram
from pyarrow import flight

from modyn.config.system import Endpoint
from modyn.errors import DataError, InvalidArgumentError, ModynError, UnavailableError
from modyn.rpc.logs import get_logger
from modyn.rpc.security import check_exposure, read_pem, token_matches
from modyn.rpc.status import TOKEN_KEY
from modyn.storage.flight.protocol import (
    DESCRIPTOR,
    END,
    AnswerHead,
    Kind,
    Question,
    error_to_flight,
    error_to_text,
    keys_from_batch,
    location,
    no_samples,
    number_from_bytes,
    payload_schema,
    to_record_batch,
)
from modyn.storage.model.samples import Payloads
from modyn.storage.read.payload_reader import PayloadReader
from modyn.storage.read.snapshot import DatasetSnapshot

PAYLOAD_SECONDS = Histogram(
    "modyn_storage_payload_seconds", "Seconds from a payload request to its last piece, read and ready to be sent"
)

ALIVE_S = 5.0
"""After so many seconds without an answer the client is told that the server lives."""

PIECE_S = 120.0
"""But no longer: who gathers a single piece for so many seconds hangs, on a dead mount say. The client then hears nothing, and goes
elsewhere or reports it."""
MAX_EXCHANGES = 64
"""Exchanges that are served at once. Each holds two threads and some pieces."""

MAX_PIECE_BYTES = 2**31 - 2**20
"""Arrow Flight sends no record batch of 2 GiB or more; the rest is for what stands around the payload."""

_GRACE_S = 1.0


class Views(Protocol):
    """Datasets by name, as they are now: a store's, or what one has published."""

    def snapshot(self, name: str) -> DatasetSnapshot:
        """Raises NotFoundError if there is no dataset of this name."""


class PayloadServer:
    """Listens from construction to `stop`. Raises SecurityError off loopback without TLS and token, UnavailableError if the address is
    taken.

    Beyond `max_exchanges` a client is told that the server is busy, and tries again.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        views: Views,
        max_exchanges: int = MAX_EXCHANGES,
        name: str = "storage",
        setting: str = "storage.flight_address",
    ) -> None:
        """`name`: of the process, for errors. `setting`: where `endpoint` is written."""
        check_exposure(f"{name}'s payload server", endpoint)
        self._reader = PayloadReader()
        token = endpoint.security.secret()
        options: dict[str, Any] = {}
        if token is not None:
            options["middleware"] = {"token": _TokenCheck(token)}
        certificate, key = endpoint.security.tls_cert, endpoint.security.tls_key
        if certificate is not None and key is not None and not endpoint.is_unix:
            options["tls_certificates"] = [(read_pem(certificate, "tls_cert"), read_pem(key, "tls_key"))]
        try:
            self._server = _Server(endpoint, views, self._reader, max_exchanges, options)
        except (pa.ArrowException, OSError) as error:
            self._reader.close()
            raise UnavailableError(
                f"{name} cannot serve payloads on {endpoint.address}: the address is taken or not one of this machine; "
                f"stop what uses it or set {setting} in the system file"
            ) from error
        self.address = endpoint.address if endpoint.is_unix else f"{endpoint.address.rsplit(':', 1)[0]}:{self._server.port}"

    def stop(self) -> None:
        """Streams that run get a moment to end; a client that does not read any more cannot hold the server up."""
        self._server.say_goodbye()
        ending = threading.Thread(target=self._server.shutdown, daemon=True)
        ending.start()
        ending.join(_GRACE_S)
        self._reader.close()


class _Server(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    def __init__(
        self, endpoint: Endpoint, views: Views, reader: PayloadReader, max_exchanges: int, options: dict[str, Any]
    ) -> None:
        self._endpoint = endpoint
        self._views = views
        self._max_exchanges = max_exchanges
        self._reader = reader
        self._lock = threading.Lock()
        self._stopping = False
        self._sending: set[_Sender] = set()
        super().__init__(location(endpoint), **options)

    def say_goodbye(self) -> None:
        """To all clients: an exchange ends when the client does not ask any more."""
        with self._lock:
            self._stopping = True
            for sender in self._sending:
                sender.say_goodbye()

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        try:
            if descriptor != DESCRIPTOR:
                raise InvalidArgumentError(
                    "this is an exchange of payloads; use PayloadClient of the same version as the storage service"
                )
            question = Question.from_schema(_schema_of(reader))
            dataset = self._views.snapshot(question.dataset)
            with self._lock:
                if self._stopping:
                    raise UnavailableError("storage is stopping")
                if len(self._sending) >= self._max_exchanges:
                    raise UnavailableError(
                        f"the payload server at {self._endpoint.address} is busy: it serves {self._max_exchanges} exchanges at once; raise "
                        "storage.max_threads or storage.replicas in the system file if that lasts"
                    )
                try:
                    sender = _Sender(writer, question.dataset, dataset.float_labels)
                except RuntimeError as error:
                    raise UnavailableError(f"the payload server at {self._endpoint.address} is busy: {error}") from error
                self._sending.add(sender)
            try:
                self._serve(question, dataset.identity, reader, sender, context)
            except _ClientGone:
                raise
            except Exception as error:  # noqa: BLE001  (the client is told)
                sender.fail(self._told(error))
                # Until the client has heard and ends the exchange; it may have asked ahead.
                while _next_request(reader) is not None:
                    continue
            finally:
                sender.close()
                with self._lock:
                    self._sending.remove(sender)
            sender.check()
        except _ClientGone:
            pass
        except Exception as error:
            raise error_to_flight(self._told(error)) from error

    def _told(self, error: Exception) -> ModynError:
        """What the client hears of it."""
        if isinstance(error, ModynError):
            return error
        if self._stopping:  # What it reads with is closed after a moment.
            return UnavailableError("storage is stopping")
        get_logger("storage").error("payload_request_failed", exc_info=error)
        return ModynError(f"the payload request failed: {type(error).__name__}: {error}; the log of storage has the details")

    def _serve(
        self,
        question: Question,
        identity: str,
        reader: flight.MetadataRecordBatchReader,
        sender: _Sender,
        context: flight.ServerCallContext,
    ) -> None:
        """Answers requests, one after the other, until the client ends the exchange. `identity`: the dataset of the whole exchange."""

        def view() -> DatasetSnapshot:
            now = self._views.snapshot(question.dataset)
            now.refuse_other(identity)
            return now

        def check_client() -> None:
            sender.check()
            if context.is_cancelled():
                raise _ClientGone

        while (request := _next_request(reader)) is not None:
            self._check_size(request.data.nbytes)
            keys = keys_from_batch(request.data)
            number = number_from_bytes(b"" if request.app_metadata is None else request.app_metadata.to_pybytes())
            if number == END:
                return
            with PAYLOAD_SECONDS.time(), sender.gathering():
                for payloads, done in self._reader.read(view, keys, question.on_missing, check_client):
                    sender.send(payloads, number, done)

    def _check_size(self, num_bytes: int) -> None:
        # Flight itself takes a message of any size; what is refused here was held in memory once.
        if num_bytes > self._endpoint.max_message_bytes:
            raise InvalidArgumentError(
                f"a payload request of {num_bytes} bytes is too large for storage, which takes {self._endpoint.max_message_bytes}: ask for "
                "fewer keys at once, or raise storage.max_message_bytes in the system file"
            )


class _ClientGone(Exception):
    """The client has cancelled the exchange, or the connection to it is lost: nobody is there to be told."""


def _schema_of(reader: flight.MetadataRecordBatchReader) -> pa.Schema:
    """Waits for the first message."""
    try:
        return reader.schema
    except OSError as error:  # There is none: the exchange was cancelled before.
        raise _ClientGone from error


def _next_request(reader: flight.MetadataRecordBatchReader) -> flight.FlightStreamChunk | None:
    """None at the end of the requests."""
    try:
        return reader.read_chunk()
    except StopIteration:
        return None
    except pa.ArrowInvalid as error:
        raise InvalidArgumentError(f"a payload request cannot be read: {error}") from error
    except pa.ArrowException as error:
        raise _ClientGone from error


class _Sender:
    """Sends pieces on a thread of its own. At most one waits while another is on its way."""

    def __init__(self, writer: flight.MetadataRecordBatchWriter, dataset: str, float_labels: bool) -> None:
        self._writer = writer
        self._dataset = dataset
        self._schema = payload_schema(float_labels)
        self._changed = threading.Condition()
        self._waiting: tuple[pa.RecordBatch | None, AnswerHead] | None = None
        self._leaving = self._complete = False
        self._gathering_since: float | None = None
        self._failure: _ClientGone | ModynError | None = None
        self._thread = threading.Thread(target=self._run, name="payload-sender", daemon=True)
        self._thread.start()

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """While it lasts a piece is to be sent every PIECE_S seconds, or the client is left without news."""
        self._gathering_since = time.monotonic()
        try:
            yield
        finally:
            self._gathering_since = None

    def check(self) -> None:
        """Raises _ClientGone if nobody is there to get anything, ModynError if a piece could not be sent for another reason."""
        with self._changed:
            if self._failure is not None:
                raise self._failure

    def send(self, payloads: Payloads, number: int, done: int) -> None:
        """Waits until the piece before it is on its way. Raises as `check`, DataError if no piece may be so large."""
        if payloads.data.nbytes > MAX_PIECE_BYTES:  # One sample: those of several are far smaller.
            raise DataError(
                f"the sample with key {payloads.keys[0]} of dataset '{self._dataset}' has {payloads.data.nbytes} bytes, and payload servers "
                f"send at most {MAX_PIECE_BYTES}: delete it, and cut its data into smaller samples"
            )
        head = AnswerHead(Kind.SAMPLES, number, done, payloads.common_size)
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is None or self._failure is not None)
            if self._failure is not None:
                raise self._failure
            if self._leaving:
                raise UnavailableError("storage is stopping")
            # Made here and not by the thread that sends: if it fails, that is an error like any other of gathering.
            self._waiting = (to_record_batch(payloads, self._schema), head)
            self._gathering_since = time.monotonic()
            self._changed.notify_all()

    def fail(self, error: ModynError) -> None:
        """Tells the client why there is no more, behind all pieces. Raises as `check`."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is None or self._failure is not None)
            if self._failure is not None:
                raise self._failure
            if not self._leaving:  # Else it is told to go elsewhere.
                self._waiting = (None, AnswerHead(Kind.FAILED, error=error_to_text(error)))
                self._changed.notify_all()

    def say_goodbye(self) -> None:
        """Tells the client to go elsewhere, also while nothing is asked."""
        with self._changed:
            self._leaving = True
            self._changed.notify_all()

    def close(self) -> None:
        """Waits until all is sent."""
        with self._changed:
            self._complete = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._writer.begin(self._schema)
            while (message := self._next()) is not None:
                batch, head = message
                self._writer.write_with_metadata(no_samples(self._schema) if batch is None else batch, head.to_bytes())
        except (flight.FlightError, OSError) as error:
            self._fail(_ClientGone(str(error)))
        except Exception as error:  # noqa: BLE001  (it ends the thread that gathers)
            cause = f"{type(error).__name__}: {error}"
            get_logger("storage").error("payload_piece_not_sent", dataset=self._dataset, error=cause)
            self._fail(ModynError(f"payloads of dataset '{self._dataset}' cannot be sent: {cause}"))

    def _fail(self, failure: _ClientGone | ModynError) -> None:
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def _next(self) -> tuple[pa.RecordBatch | None, AnswerHead] | None:
        """What to send next, or None when that was all."""
        with self._changed:
            if not self._changed.wait_for(self._has_news, ALIVE_S):
                since = self._gathering_since
                if since is None or time.monotonic() < since + PIECE_S:
                    return None, AnswerHead(Kind.ALIVE)
                get_logger("storage").error("payload_piece_hangs", dataset=self._dataset, seconds=PIECE_S)
                self._changed.wait_for(self._has_news)
            if self._waiting is not None:
                message, self._waiting = self._waiting, None
                self._changed.notify_all()
                return message
            if self._complete:
                return None
            self._complete = True
            return None, AnswerHead(Kind.GOODBYE)

    def _has_news(self) -> bool:
        return self._waiting is not None or self._leaving or self._complete


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str]]) -> None:
        presented = next((values[0] for name, values in headers.items() if name.lower() == TOKEN_KEY and values), None)
        if not token_matches(self._token, presented):
            raise flight.FlightUnauthenticatedError("no valid token")
