"""A channel to a service. Every call on it has a deadline, carries the token, and raises from `modyn.errors` only.

A unary call that meets an unavailable server is repeated for a while: all calls are idempotent but those named `not_repeatable`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Self, TypeVar

import grpc

from modyn.config.endpoint import Endpoint
from modyn.errors import ModynError, UnavailableError
from modyn.rpc.retry import CancellationToken, Retrier, RetryPolicy
from modyn.rpc.security import Certificates, FreshCertificates, client_certificates
from modyn.rpc.status import TOKEN_KEY, from_rpc, reason_of

T = TypeVar("T")

DEFAULT_DEADLINE_S = 60.0
STREAM_DEADLINE_S = 3600.0
"""Deadline of a whole stream. One that a client follows is opened again after it, see `ResumingStream` and `Retrier.follow`."""

_ENDING_S = 60.0
"""After its deadline a call has ended."""

RENEW_AFTER_S = 5.0
"""A connection that has failed for so long is replaced. gRPC asks for the address of a name that could not be resolved, or that has moved, after
pauses that grow to two minutes, so that a connection from before an outage finds the server long after it is back. A new connection asks at
once. Not sooner: an attempt to connect may take so long."""


@dataclass(slots=True, eq=False)
class _Connection:
    """A connection and the certificates that it was made with. needed_until: on the clock of the channel, until its calls have ended."""

    channel: grpc.Channel
    certificates: Certificates | None
    needed_until: float = 0.0


class Channel:
    """What the generated stubs need of a gRPC channel. Not interceptors: those do not see errors inside a stream."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        wait_s: float = 10.0,
        stream_s: float = STREAM_DEADLINE_S,
        not_repeatable: frozenset[str] = frozenset(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wait_s`: how long unary calls wait for a server that cannot be reached. `stream_s`: how long a stream may last.

        `not_repeatable`: names of calls that are made once only, without service, such as `Put`. `clock`: seconds, never set back.
        """
        self._options = [
            ("grpc.max_receive_message_length", endpoint.max_message_bytes),
            ("grpc.max_send_message_length", endpoint.max_message_bytes),
            ("grpc.initial_reconnect_backoff_ms", 50),
            # In spite of its name: how long an attempt to connect may take, over a slow network or to a busy machine. A refused one ends at
            # once.
            ("grpc.min_reconnect_backoff_ms", 5000),
            ("grpc.max_reconnect_backoff_ms", 1000),
            # A server of names that does not answer, in place of two minutes.
            ("grpc.dns_ares_query_timeout", 5000),
            ("grpc.keepalive_time_ms", 60_000),
            # Proxies of the environment are not meant for services of one installation.
            ("grpc.enable_http_proxy", 0),
            # Without it channels to one address share a connection, and a client made after a restart inherits its back-off.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        self._certificates = FreshCertificates(endpoint, client_certificates)
        self._lock = threading.Lock()  # Protects the connections.
        self._connections: list[_Connection] = []
        # Set and read without the lock: a failure that is missed is followed by others.
        self._failing_since: float | None = None
        self._has_failed = False
        """For `RENEW_AFTER_S`, with a failure at its end: no stream that was opened meanwhile lives on."""
        self._security = endpoint.security
        self._peer = endpoint.address
        self._stream_s = stream_s
        self._not_repeatable = not_repeatable
        self._clock = clock
        self.retrier = Retrier(RetryPolicy(wait_s, on_deadline=False))

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Make a call with one request and one answer. Repeated while the server is unavailable, unless it is `not_repeatable`.

        Args: method: full name, `/modyn.Storage/Ingest`. args, kwargs: (de)serializers, as generated stubs pass them to a `grpc.Channel`.
        """
        once = partial(self._call, self._bound("unary_unary", method, *args, **kwargs), timeout=DEFAULT_DEADLINE_S)
        return once if method.rsplit("/", 1)[-1] in self._not_repeatable else partial(self.retrier.call, once)

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Make a call with a stream of requests and one answer. Args as for `unary_unary`."""
        return partial(self._call, self._bound("stream_unary", method, *args, **kwargs), timeout=self._stream_s)

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Make a call with one request and a `ResponseStream`. Args as for `unary_unary`."""
        call = self._bound("unary_stream", method, *args, **kwargs)

        def opened(request: Any, timeout: float = self._stream_s) -> ResponseStream[Any]:
            return ResponseStream(call(timeout)(request, timeout=timeout, metadata=self._metadata), self)

        return opened

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        """The token, as it is now: its file may have changed."""
        token = self._security.secret()
        return ((TOKEN_KEY, f"Bearer {token}"),) if token else ()

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            for connection in self._connections:
                connection.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _bound(self, kind: str, method: str, *args: Any, **kwargs: Any) -> Callable[[float], Any]:
        """What gives the call `method` of the newest connection, given the seconds that it may take."""
        made: tuple[grpc.Channel | None, Any] = None, None

        def call(timeout: float) -> Any:
            nonlocal made
            connection, bound = made
            newest = self._connection(timeout)
            if newest is not connection:
                bound = getattr(newest, kind)(method, *args, **kwargs)
                made = newest, bound
            return bound

        return call

    def _connection(self, timeout: float) -> grpc.Channel:
        """The connection with the certificates as they are now, which does not fail. Calls on an older one go on; one without calls is closed."""
        with self._lock:
            now, certificates = self._clock(), self._certificates.newest()
            if self._has_failed and self._connections:
                # Streams are left only where the server ends them before it stops.
                self._connections[-1].needed_until = min(self._connections[-1].needed_until, now + _ENDING_S)
            if self._has_failed or not self._connections or self._connections[-1].certificates is not certificates:
                self._connections.append(_Connection(self._connect(certificates), certificates))
                self._failing_since, self._has_failed = None, False
            newest = self._connections[-1]
            newest.needed_until = max(newest.needed_until, now + timeout + _ENDING_S)
            for old in [one for one in self._connections[:-1] if one.needed_until <= now]:
                old.channel.close()
                self._connections.remove(old)
            return newest.channel

    def _connect(self, certificates: Certificates | None) -> grpc.Channel:
        if certificates is None:
            return grpc.insecure_channel(self._peer, options=self._options)
        credentials = grpc.ssl_channel_credentials(certificates.authority, certificates.key, certificates.chain)
        return grpc.secure_channel(self._peer, credentials, options=self._options)

    def _call(self, call: Callable[[float], Any], request: Any, timeout: float, token: CancellationToken | None = None) -> Any:
        """The answer to one call. token: ends the call at both sides when it is cancelled; its cause is raised."""
        try:
            if token is None:
                answer = call(timeout)(request, timeout=timeout, metadata=self._metadata)
                self._answered()
                return answer
            running = call(timeout).future(request, timeout=timeout, metadata=self._metadata)
            unregister = token.on_cancel(lambda _: running.cancel())
            try:
                answer = running.result()
                self._answered()
                return answer
            except grpc.FutureCancelledError:
                token.check()
                raise
            finally:
                unregister()
        except grpc.RpcError as error:
            raise self._error(error) from error

    def _answered(self) -> None:
        self._failing_since, self._has_failed = None, False

    def _error(self, error: grpc.RpcError) -> ModynError:
        """Our error for what a call ended with. Notes whether the connection failed: what the server answers has a reason with it."""
        ours, since, now = from_rpc(error, self._peer), self._failing_since, self._clock()
        if reason_of(error) is not None:
            self._answered()
        elif type(ours) is UnavailableError:  # not a deadline
            self._failing_since = now if since is None else since
            self._has_failed = since is not None and now - since >= RENEW_AFTER_S
        return ours


class ResponseStream(Generic[T]):
    """Messages that a server streams. `cancel` ends it from any thread; iterating then stops with CancelledError."""

    def __init__(self, call: Any, channel: Channel) -> None:
        """Args: call: the stream of gRPC. channel: that of the call."""
        self._call = call
        self._channel = channel

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            message: T = next(self._call)
        except grpc.RpcError as error:
            raise self._channel._error(error) from error
        self._channel._answered()
        return message

    def cancel(self) -> None:
        """End the stream, from any thread."""
        self._call.cancel()


def is_serving(endpoint: Endpoint, timeout_s: float = 1.0) -> bool:
    """Whether the service at `endpoint` says that it is healthy."""
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with Channel(endpoint, wait_s=0) as channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except ModynError:
            return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)
