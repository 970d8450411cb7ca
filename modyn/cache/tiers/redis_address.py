"""Connections to the Redis of the cache. The connections do not repeat calls, bound the time of each answer, and raise an error immediately for
an invalid URL.
"""

from __future__ import annotations

import time
from typing import Any, Final
from urllib.parse import urlsplit

from redis import Redis, RedisCluster
from redis.backoff import NoBackoff
from redis.connection import DefaultParser, PythonRespSerializer
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from modyn.cache.tiers.tier import Buffer, PartedBuffer, parts_of
from modyn.errors import ConfigError

CONNECT_TIMEOUT_S: Final = 0.05
"""Seconds to connect to one address. A host name may have several addresses: localhost has two."""
TIMEOUT_S: Final = 0.1
"""Seconds for a whole answer."""
SEND_BYTES: Final = 6000
"""Largest size in bytes of a buffer that is copied before it is sent. Larger buffers are sent separately, without a copy."""
_SAME_CALL_S: Final = 0.005
"""Two answers that this process gets within this number of seconds count as answers to one call."""
READ_BYTES: Final = 1 << 18
"""Bytes of one read from a socket."""

if not hasattr(DefaultParser, "read_from_socket"):
    # Without hiredis, redis-py reads in another way, which this module could not bound.
    raise ImportError(
        "redis-py does not use hiredis, so the time for an answer cannot be bounded: install hiredis of version 3.2 or later"
    )


class _BoundedParser(DefaultParser):  # type: ignore[misc, valid-type]
    """Bounds the wait for a whole answer, because the library's own time-out starts again with each piece that arrives. All answers of a transaction
    count as one answer: the answers to MULTI, to each queued command, and to EXEC."""

    _timeout_s = _until = _answered_at = 0.0
    _is_queued = False

    def on_connect(self, connection: Any, **options: Any) -> None:
        self._timeout_s = connection.socket_timeout
        super().on_connect(connection, **options)

    def read_response(self, *args: Any, **options: Any) -> Any:
        now = time.monotonic()
        # A command that opens a connection is answered by OK too, and the connection may then be idle.
        if not self._is_queued or now - self._answered_at > _SAME_CALL_S:
            self._until = now + self._timeout_s
        answer = super().read_response(*args, **options)
        self._is_queued, self._answered_at = answer in (b"OK", b"QUEUED"), time.monotonic()
        return answer

    def read_from_socket(self, timeout: object = None, raise_on_timeout: bool = True) -> Any:
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise RedisTimeoutError(f"no whole answer within {self._timeout_s} s")
        return super().read_from_socket(left_s, raise_on_timeout)


class _PartsPacker(PythonRespSerializer):
    """Packs commands into pieces that are sent one by one. Large buffers are not copied, and buffers in parts are not joined."""

    def pack(self, *args: Any) -> list[Buffer]:
        if not any(isinstance(arg, PartedBuffer) for arg in args):
            packed: list[Buffer] = super().pack(*args)  # type: ignore[no-untyped-call]
            return packed
        pieces: list[Buffer] = []
        text = bytearray(b"*%d\r\n" % len(args))
        for arg in args:
            whole = arg if isinstance(arg, PartedBuffer) else self.encode(arg)
            text += b"$%d\r\n" % len(whole)
            for part in parts_of(whole):
                if len(part) > SEND_BYTES:
                    pieces += [text, part]
                    text = bytearray()
                else:
                    text += part
            text += b"\r\n"
        return [*pieces, text]


class RedisAddress:
    """Address of a Redis or of a node of a Cluster: redis://, rediss:// (TLS) or unix://, with or without a password."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        """Check the URL without connecting. Args: timeout_s: seconds for a whole answer. Raises: ConfigError: the URL is invalid."""
        self._url = url
        self._options: dict[str, Any] = {
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "socket_timeout": timeout_s,
            "socket_read_size": READ_BYTES,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
        }
        try:
            pool = Redis.from_url(url).connection_pool
            pool.connection_class(**pool.connection_kwargs)  # The constructor checks the options.
        except (ValueError, TypeError):
            # The message shows neither the URL nor the error: both may contain a password.
            raise ConfigError(
                "the URL of Redis is wrong: write redis://HOST:PORT/0, rediss:// or unix://PATH; in a password, write %2F for /, %23 for # and so on"
            ) from None
        # The packer of hiredis copies a command several times, which takes ten times as long for large buffers.
        self._options["command_packer"] = _PartsPacker(SEND_BYTES, pool.get_encoder().encode)

    @property
    def where(self) -> str:
        """See `address_of`."""
        return address_of(self._url)

    def connect(self, patience: float = 1.0) -> Any:
        """Connect, and return a client for the kind of server, a single Redis or a Cluster. Raises the library's errors.

        Args: patience: factor of `timeout_s`. Returns: the client. Its type is Any, because the library's types include the answers of its
        asynchronous clients.
        """
        timeout_s = patience * self._options["socket_timeout"]
        options = self._options | {"socket_timeout": timeout_s}
        client: Any = Redis.from_url(self._url, parser_class=_BoundedParser, driver_info=None, **options)
        if not client.info("cluster").get("cluster_enabled"):
            return client
        client.close()
        # If a node does not answer, this client waits up to three times for each piece of an answer, because it also asks for the slots again.
        return RedisCluster.from_url(self._url, **options | {"socket_timeout": timeout_s / 2})


def address_of(url: str) -> str:
    """Return the host and port, or the socket, of a URL, without user and password.

    >>> address_of("rediss://user:secret@cache.example:7000/0"), address_of("redis://localhost"), address_of("unix:///run/r.sock?password=p")
    ('cache.example:7000', 'localhost:6379', '/run/r.sock')
    """
    parts = urlsplit(url)
    return parts.path if parts.scheme == "unix" else f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
