"""Channel to a service. Every call has a deadline, carries the token, and raises only errors of `modyn.errors`.

A unary call to an unavailable server is repeated for some seconds. All calls are idempotent, except the calls in `not_repeatable`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Self, TypeVar

import grpc

from modyn.config.system_sections.endpoint import Endpoint
from modyn.errors import ModynError, UnavailableError
from modyn.rpc.retry import CancellationToken, Retrier, RetryPolicy
from modyn.rpc.security import Certificates, FreshCertificates, client_certificates
from modyn.rpc.status import TOKEN_KEY, from_rpc, reason_of

T = TypeVar("T")

DEFAULT_DEADLINE_S = 60.0
"""Deadline of a unary call, in seconds."""
STREAM_DEADLINE_S = 3600.0
"""Deadline of a whole stream, in seconds. After the deadline, `ResumingStream` and `Retrier.follow` open their stream again."""

_ENDING_S = 60.0
"""A call has surely ended this number of seconds after its deadline."""

RENEW_AFTER_S = 5.0
"""Seconds of failure after which a connection is replaced. An attempt to connect may also take this long. gRPC resolves a name again after pauses
that grow to two minutes, so an old connection may reach the server only long after an outage. A new connection resolves the name immediately."""


@dataclass(slots=True, eq=False)
class _Connection:
    """A connection and its certificates. needed_until: time at which all calls of the connection have ended, on the clock of the channel."""

    channel: grpc.Channel
    certificates: Certificates | None
    needed_until: float = 0.0


class Channel:
    """The methods of a gRPC channel that generated stubs use. Interceptors of gRPC are not used, because they do not see errors inside a stream."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        wait_s: float = 10.0,
        stream_s: float = STREAM_DEADLINE_S,
        not_repeatable: frozenset[str] = frozenset(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: wait_s: longest time that unary calls wait for an unavailable server. stream_s: longest time of a stream. not_repeatable: names of
        calls that are never repeated, without service, such as `Put`. clock: seconds, monotonic.
        """
        self._options = [
            ("grpc.max_receive_message_length", endpoint.max_message_bytes),
            ("grpc.max_send_message_length", endpoint.max_message_bytes),
            ("grpc.initial_reconnect_backoff_ms", 50),
            # Despite its name, this option is the longest time of an attempt to connect. A refused attempt ends immediately.
            ("grpc.min_reconnect_backoff_ms", 5000),
            ("grpc.max_reconnect_backoff_ms", 1000),
            # Timeout of a name server; the default is two minutes.
            ("grpc.dns_ares_query_timeout", 5000),
            # If the server's machine dies, pings end a stream long before the deadline of the stream.
            ("grpc.keepalive_time_ms", 60_000),
            # Proxies that environment variables name are not meant for the services of one installation.
            ("grpc.enable_http_proxy", 0),
            # Otherwise channels to one address share a connection, and a new client inherits the backoff of an old one.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        self._certificates = FreshCertificates(endpoint, client_certificates)
        self._lock = threading.Lock()  # Protects the connections.
        self._connections: list[_Connection] = []
        # This field is set and read without the lock. A thread may miss a failure, because further failures follow.
        self._failing_since: float | None = None
        self._has_failed = False
        """Whether all calls failed for `RENEW_AFTER_S` seconds, so that no stream of the newest connection is alive."""
        self._security = endpoint.security
        self._peer = endpoint.address
        self._stream_s = stream_s
        self._not_repeatable = not_repeatable
        self._clock = clock
        self.retrier = Retrier(RetryPolicy(wait_s, on_deadline=False))

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return a call with one request and one answer. The call is repeated while the server is unavailable, unless the call is in
        `not_repeatable`.

        Args: method: full name, `/modyn.Storage/Ingest`. args, kwargs: (de)serializers of a generated stub.
        """
        once = partial(self._call, self._bound("unary_unary", method, *args, **kwargs), timeout=DEFAULT_DEADLINE_S)
        return once if method.rsplit("/", 1)[-1] in self._not_repeatable else partial(self.retrier.call, once)

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return a call with a stream of requests and one answer. Args: see `unary_unary`."""
        return partial(self._call, self._bound("stream_unary", method, *args, **kwargs), timeout=self._stream_s)

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return a call with one request and a `ResponseStream`. Args: see `unary_unary`."""
        call = self._bound("unary_stream", method, *args, **kwargs)

        def open_stream(request: Any, timeout: float = self._stream_s) -> ResponseStream[Any]:
            return ResponseStream(call(timeout)(request, timeout=timeout, metadata=self._metadata), self)

        return open_stream

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the token. The token file is read again, because it may have changed."""
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
        """Return a function that takes a timeout in seconds, and returns the call `method` on the newest connection."""
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
        """Return a connection that has the current certificates and has not failed. Calls on older connections continue. Older connections without
        calls are closed.
        """
        with self._lock:
            now, certificates = self._clock(), self._certificates.newest()
            if self._has_failed and self._connections:
                # The streams of the failed connection have failed too, so only running unary calls still need this connection.
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
        """Make one call. Args: token: the cancellation of this token ends the call on both sides, and the cause of the token is raised."""
        try:
            if token is None:
                answer = call(timeout)(request, timeout=timeout, metadata=self._metadata)
                self._note_answer()
                return answer
            running = call(timeout).future(request, timeout=timeout, metadata=self._metadata)
            unregister = token.on_cancel(lambda _: running.cancel())
            try:
                answer = running.result()  # the answer or the cancellation of `token` ends this wait
                self._note_answer()
                return answer
            except grpc.FutureCancelledError:
                token.check()
                raise
            finally:
                unregister()
        except grpc.RpcError as error:
            raise self._error(error) from error

    def _note_answer(self) -> None:
        self._failing_since, self._has_failed = None, False

    def _error(self, error: grpc.RpcError) -> ModynError:
        """Convert the gRPC error of a call to a ModynError, and note whether the connection failed. An error with a reason is an answer of the
        server.
        """
        ours, since, now = from_rpc(error, self._peer), self._failing_since, self._clock()
        if reason_of(error) is not None:
            self._note_answer()
        elif type(ours) is UnavailableError:  # not a deadline
            self._failing_since = now if since is None else since
            self._has_failed = since is not None and now - since >= RENEW_AFTER_S
        return ours


class ResponseStream(Generic[T]):
    """Stream of a server's messages. Any thread may call `cancel`. The iteration then ends with CancelledError."""

    def __init__(self, call: Any, channel: Channel) -> None:
        """Args: call: the gRPC stream. channel: channel of the call."""
        self._call = call
        self._channel = channel

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            message: T = next(self._call)
        except grpc.RpcError as error:
            raise self._channel._error(error) from error
        self._channel._note_answer()
        return message

    def cancel(self) -> None:
        """End the stream, from any thread."""
        self._call.cancel()


def is_serving(endpoint: Endpoint, timeout_s: float = 1.0) -> bool:
    """Whether the service at `endpoint` reports that it is healthy."""
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with Channel(endpoint, wait_s=0) as channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except ModynError:
            return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)
