"""The Arrow Flight server of storage: it answers `DoGet` with payloads by key (see `protocol`).

gRPC gives each call a thread, which takes chunks from a `ChunkReader` and sends them. Only one chunk is read in advance, so a client that stops
reading also stops the reads from disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from prometheus_client import Histogram
from pyarrow import flight

from modyn.config.system_sections.endpoint import Endpoint
from modyn.errors import DataError, InvalidArgumentError, ModynError, SecurityError, UnavailableError
from modyn.records import Int64Array
from modyn.rpc.access import AccessTokens, Role
from modyn.rpc.logs import get_logger
from modyn.rpc.security import check_exposure, server_certificates
from modyn.rpc.status import TOKEN_KEY
from modyn.storage.flight.admission import AdmissionControl
from modyn.storage.flight.protocol import (
    REQUESTS_PER_STREAM,
    AnswerHead,
    PayloadRequest,
    answer_schema,
    error_to_flight,
    error_to_text,
    location,
    no_samples,
    to_record_batch,
)
from modyn.storage.model.samples import OnMissing, Payloads
from modyn.storage.read.payload_reader import locate
from modyn.storage.read.snapshot import DatasetSnapshot

PAYLOAD_SECONDS = Histogram(
    "modyn_storage_payload_seconds", "Seconds from a payload request to its last chunk, read and ready to be sent"
)
_GRACE_S = 1.0
"""Longest time in seconds that `stop` waits for running answers."""
_STOPPING = "storage is stopping; ask again when it is back"


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of a payload server."""

    max_streams: int = 64
    """Largest number of client streams that are served at once. Each stream uses `REQUESTS_PER_STREAM` threads, and at most two chunks for each
    thread.
    """
    idle_s: float = 5.0
    """Seconds after which another request may take the permit of a request whose client reads nothing."""
    alive_s: float = 5.0
    """Seconds without a chunk after which the server reports to the client that it is alive."""
    hang_s: float = 120.0
    """Seconds without a chunk after which the server no longer reports to the client that it is alive. The read probably hangs, so the client must
    ask another server, or report the problem.
    """
    max_chunk_bytes: int = 2**31 - 2**20
    """Largest chunk in bytes. Arrow Flight sends no record batch of 2 GiB or more, and a batch contains other data in addition to the payloads."""
    chunk_rows: int = 65_536
    """Largest number of samples that are read and sent at once."""
    chunk_bytes: int = 8 * 2**20
    """Largest number of payload bytes that are read and sent at once, unless a single sample is larger."""
    chunks_at_once: int = 8
    """Largest number of chunks of one dataset that are read at once, for all requests together."""
    poll_s: float = 1.0
    """Interval in seconds at which a request that waits for a chunk checks its client, because a read on a dead mount may never end."""


class Snapshots(Protocol):
    """Interface that returns the snapshots of datasets, by name. `DatasetStore` and `PublishedDatasets` implement it."""

    def snapshot(self, name: str) -> DatasetSnapshot:
        """Return the newest snapshot of the dataset `name`. Raises NotFoundError if there is no dataset of this name."""


class PayloadServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Listens from construction to `stop`. Requests beyond `ServerLimits.max_streams` are refused, and clients try again.

    Raises: SecurityError: other machines could reach the address without TLS or without a token. UnavailableError: the address is taken.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        snapshots: Snapshots,
        limits: ServerLimits | None = None,
        name: str = "storage",
        setting: str = "storage.flight_address",
    ) -> None:
        """Args: name: name of the process, for errors. setting: setting that contains `endpoint`, for errors."""
        check_exposure(f"{name}'s payload server", endpoint)
        self._endpoint, self._snapshots, self._limits = endpoint, snapshots, limits or ServerLimits()
        number = self._limits.max_streams * REQUESTS_PER_STREAM  # There is one permit for each concurrent request.
        self._admission = AdmissionControl(
            number,
            self._limits.idle_s,
            f"the payload server at {endpoint.address} is busy: it answers {number} requests at once; raise storage.max_threads or "
            "storage.replicas in the system file if that lasts",
        )
        self._is_stopping = False
        tokens = AccessTokens(endpoint.security)
        options: dict[str, Any] = {"middleware": {"token": _TokenCheck(tokens)}} if tokens.required else {}
        certificates = server_certificates(endpoint)
        if certificates is not None:
            options["tls_certificates"] = [(certificates.chain, certificates.key)]
            if certificates.authority is not None:
                options |= {"verify_client": True, "root_certificates": certificates.authority}
        self._reader = ChunkReader(self._limits)
        try:
            super().__init__(location(endpoint), **options)
        except (pa.ArrowException, OSError) as error:
            self._reader.close()
            raise UnavailableError(
                f"{name} cannot serve payloads on {endpoint.address}: the address is taken or not one of this machine; "
                f"stop what uses it or set {setting} in the system file"
            ) from error
        self.address = endpoint.address if endpoint.is_unix else f"{endpoint.address.rsplit(':', 1)[0]}:{self.port}"

    def stop(self) -> None:
        """Stop the server. Running answers end with their next chunk, and the clients request the rest from other servers. `shutdown` waits for all
        calls, even if a client does not read. So `shutdown` runs in a thread, and this method waits only a limited time. The reader is closed last,
        because calls still use it.
        """
        self._is_stopping = True
        ending = threading.Thread(target=self.shutdown, daemon=True)
        ending.start()
        ending.join(_GRACE_S)  # The wait ends when all calls have ended, or after the time limit.
        self._reader.close()

    def __exit__(self, *_: object) -> None:
        self.stop()  # The inherited method waits for all calls, and leaves the reader open.

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        """Stream the payloads of a ticket. Errors of ticket and dataset fail the call. Later errors become the last message."""
        try:
            self._check_size(len(ticket.ticket))
            request = PayloadRequest.from_ticket(ticket.ticket)
            dataset = self._snapshots.snapshot(request.dataset)
            dataset.refuse_other(request.identity)
        except Exception as error:
            raise error_to_flight(self._describe_error(error)) from error
        schema = answer_schema(dataset.float_labels, dataset.identity)
        return flight.GeneratorStream(schema, self._answer(request, dataset.identity, schema, context))

    def _answer(
        self, request: PayloadRequest, identity: str, schema: pa.Schema, context: flight.ServerCallContext
    ) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        """Yield the messages of an answer. An error becomes the last message."""
        done = 0
        try:
            with self._admission.admit(request.dataset, request.client) as permit, PAYLOAD_SECONDS.time():
                for chunk in self._chunks(request, identity, context):
                    if chunk is None:
                        message = no_samples(schema), AnswerHead(done).to_bytes()
                    else:
                        payloads, done = chunk
                        self._check_sendable(payloads, request.dataset)
                        message = to_record_batch(payloads, schema), AnswerHead(done, payloads.common_size).to_bytes()
                    with self._admission.awaiting_client(permit):
                        yield message
        except Exception as error:  # noqa: BLE001  (the client raises it)
            yield no_samples(schema), AnswerHead(done, error=error_to_text(self._describe_error(error))).to_bytes()

    def _chunks(
        self, request: PayloadRequest, identity: str, context: flight.ServerCallContext
    ) -> Iterator[tuple[Payloads, int] | None]:
        """Yield the chunks of the request like `ChunkReader.read`. Yield None when the server must report to the client that it is alive."""

        def snapshot() -> DatasetSnapshot:
            now = self._snapshots.snapshot(request.dataset)
            now.refuse_other(identity)
            return now

        limits = self._limits
        last_chunk = last_message = time.monotonic()
        hangs = False
        for chunk in self._reader.read(snapshot, request.keys, request.on_missing, with_bytes=request.with_bytes):
            if self._is_stopping:
                raise UnavailableError(_STOPPING)
            if context.is_cancelled():
                return
            if chunk is not None:
                yield chunk
                last_chunk = last_message = time.monotonic()
                continue
            now = time.monotonic()
            if not hangs and now - last_chunk >= limits.hang_s:
                hangs = True
                get_logger("storage").error("payload_read_hangs", dataset=request.dataset, seconds=limits.hang_s)
            if not hangs and now - last_message >= limits.alive_s:
                yield None
                last_message = now

    def _check_size(self, num_bytes: int) -> None:
        # Flight accepts messages of any size, so a message that is refused here was already in memory.
        if num_bytes > self._endpoint.max_message_bytes:
            raise InvalidArgumentError(
                f"a payload request of {num_bytes} bytes is too large for storage, which takes {self._endpoint.max_message_bytes}: ask for "
                "fewer keys at once, or raise storage.max_message_bytes in the system file"
            )

    def _check_sendable(self, payloads: Payloads, dataset: str) -> None:
        # Only a single sample can be this large: chunks of several samples are far smaller.
        if payloads.data.nbytes > self._limits.max_chunk_bytes:
            raise DataError(
                f"the sample with key {payloads.keys[0]} of dataset '{dataset}' has {payloads.data.nbytes} bytes, and payload servers "
                f"send at most {self._limits.max_chunk_bytes}: delete it, and cut its data into smaller samples"
            )

    def _describe_error(self, error: Exception) -> ModynError:
        """Convert `error` to the error that the client gets."""
        if isinstance(error, ModynError):
            return error
        if self._is_stopping:  # The reader may be closed by now.
            return UnavailableError(_STOPPING)
        get_logger("storage").error("payload_request_failed", exc_info=error)
        return ModynError(f"the payload request failed: {type(error).__name__}: {error}; the log of storage has the details")


@dataclass(slots=True, eq=False)
class _Pool:
    """The threads that read one dataset, and their unfinished chunks."""

    threads: ThreadPoolExecutor
    running: list[Future[Payloads]] = field(default_factory=list)


class ChunkReader:
    """Reads payloads for all requests of a process, one chunk of each request in advance. Thread-safe. Each dataset has its own threads, so reads
    that hang on a dead mount do not block other datasets.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()  # Protects the pools, so that no pool is dropped while a chunk is submitted to it.
        self._pools: dict[str, _Pool] = {}

    def close(self) -> None:
        """Cancel all reads that have not begun. The method does not wait for running reads."""
        with self._lock:
            for pool in self._pools.values():
                pool.threads.shutdown(wait=False, cancel_futures=True)

    def read(
        self, snapshot: Callable[[], DatasetSnapshot], keys: Int64Array, on_missing: OnMissing, *, with_bytes: bool = True
    ) -> Iterator[tuple[Payloads, int] | None]:
        """Yield chunks, at least one, in the order of `keys`. Each chunk comes with the number of keys that are answered, including this chunk.

        All of `keys`, int64 (n,), are looked up first. While a chunk is being read, None is yielded every `ServerLimits.poll_s` seconds.

        Args: snapshot: returns the newest snapshot of the dataset; called again for each chunk, from a thread of the dataset. with_bytes: False:
        no file is read, and payloads have no bytes.
        Raises: the errors of `locate` and of `LocatedSamples.take`.
        """
        located = locate(snapshot, keys, on_missing)
        lengths = located.entries.lengths if with_bytes else 0
        read = located.take if with_bytes else located.without_bytes
        ranges = cut(lengths, len(located), self._limits.chunk_bytes, self._limits.chunk_rows)
        upto = [int(located.where[start]) for start, _ in ranges[1:]] + [len(keys)]
        chunk = self._start(located.identity, read, ranges[0])
        try:
            for number, done in enumerate(upto, start=1):
                # The end of the read ends this wait. Every `poll_s` seconds, the caller checks its client.
                while not wait([chunk], self._limits.poll_s).done:
                    yield None
                payloads = chunk.result()
                if number < len(ranges):
                    chunk = self._start(located.identity, read, ranges[number])
                yield payloads, done
        finally:
            chunk.cancel()

    def _start(self, dataset: str, read: Callable[[slice], Payloads], rows: tuple[int, int]) -> Future[Payloads]:
        """Submit the read of a chunk. Args: dataset: identity of the dataset's registration."""
        with self._lock:
            pool = self._pools.get(dataset)
            if pool is None:
                self._drop_idle()
                # Each dataset has its own threads, because reads on a dead mount hang and must not block other datasets.
                pool = _Pool(ThreadPoolExecutor(self._limits.chunks_at_once, thread_name_prefix="gather"))
                self._pools[dataset] = pool
            started = pool.threads.submit(read, slice(*rows))
            pool.running = [*(other for other in pool.running if not other.done()), started]
            return started

    def _drop_idle(self) -> None:
        """End the threads of datasets that are not read now, because a server may read many datasets during its life."""
        for identity, pool in list(self._pools.items()):
            if all(chunk.done() for chunk in pool.running):
                self._pools.pop(identity).threads.shutdown(wait=False)


def cut(lengths: Int64Array | int, num_samples: int, max_bytes: int, max_rows: int) -> list[tuple[int, int]]:
    """Divide the samples into ranges [start, stop) of at most `max_rows` samples and `max_bytes` bytes; a sample with more bytes is a range of its
    own. Returns one empty range if there are no samples.

    Args: lengths: bytes of each sample, int64 (n,); one int if all are equal.

    >>> cut(np.array([3, 3, 3, 20, 1]), 5, 6, 9), cut(4, 5, 8, 9), cut(4, 5, 99, 3), cut(1, 0, 8, 9)
    ([(0, 2), (2, 3), (3, 4), (4, 5)], [(0, 2), (2, 4), (4, 5)], [(0, 3), (3, 5)], [(0, 0)])
    """
    if isinstance(lengths, int):
        step = max(1, min(max_rows, max_bytes // lengths)) if lengths else max_rows
        return [(start, min(start + step, num_samples)) for start in range(0, max(num_samples, 1), step)]
    ends = np.cumsum(lengths)
    ranges: list[tuple[int, int]] = []
    start = 0
    while start < num_samples:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + max_bytes, side="right")))
        ranges.append((start, min(stop, start + max_rows)))
        start = ranges[-1][1]
    return ranges or [(0, 0)]


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    def __init__(self, tokens: AccessTokens) -> None:
        super().__init__()
        self._tokens = tokens

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str]]) -> None:
        presented = next((values[0] for name, values in headers.items() if name.lower() == TOKEN_KEY and values), None)
        try:
            self._tokens.check(presented, Role.READER, "reading payloads")
        except SecurityError as error:
            raise flight.FlightUnauthenticatedError("no valid token") from error
