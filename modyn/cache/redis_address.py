"""Connections to the Redis of the cache: nothing is retried, each answer has a bounded time, and a URL that is none is refused at once."""

from __future__ import annotations

import time
from typing import Any, Final
from urllib.parse import urlsplit

from redis import Redis, RedisCluster
from redis._parsers import Encoder, _HiredisParser
from redis.backoff import NoBackoff
from redis.connection import PythonRespSerializer
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from modyn.cache.tier import Buffer, PartedBuffer, parts_of
from modyn.errors import ConfigError

CONNECT_TIMEOUT_S: Final = 0.05
"""For each address that a name stands for: localhost has two."""
TIMEOUT_S: Final = 0.1
"""For a whole answer."""
SEND_BYTES: Final = 6000
"""Of a buffer, above which it is sent by itself, without copying."""
_SAME_CALL_S: Final = 0.005
"""Between two answers to one call, at most, for this process."""
READ_BYTES: Final = 1 << 18
"""At once from a socket."""


class _BoundedParser(_HiredisParser):
    """Bounds the wait for a whole answer, where the library's own time-out begins anew with each piece that arrives. The answers of a transaction are
    one: that to MULTI, those to what it queues, and its own."""

    _socket_timeout: float
    _until = _answered_at = 0.0
    _is_queued = False

    def read_response(self, *args: Any, **options: Any) -> Any:
        now = time.monotonic()
        # OK is also an answer to what opens a connection, which may rest then.
        if not self._is_queued or now - self._answered_at > _SAME_CALL_S:
            self._until = now + self._socket_timeout
        answer = super().read_response(*args, **options)
        self._is_queued, self._answered_at = answer in (b"OK", b"QUEUED"), time.monotonic()
        return answer

    def read_from_socket(self, timeout: object = None, raise_on_timeout: bool = True) -> Any:
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise RedisTimeoutError(f"no whole answer within {self._socket_timeout} s")
        return super().read_from_socket(left_s, raise_on_timeout)  # type: ignore[no-untyped-call]


class _PartsPacker(PythonRespSerializer):
    """Packs commands into pieces that are sent one by one, so that large buffers are not copied, nor those put together that lie in parts."""

    def __init__(self) -> None:
        encoder = Encoder("utf-8", "strict", False)  # type: ignore[no-untyped-call]
        super().__init__(SEND_BYTES, encoder.encode)

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
    """Where a Redis is: redis://, rediss:// (TLS) or unix://, with a password or not, or a node of a Cluster."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        """Connects to nothing. Args: timeout_s: for a whole answer. Raises: ConfigError: it is no such URL."""
        self._url = url
        self._options: dict[str, Any] = {
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "socket_timeout": timeout_s,
            "socket_read_size": READ_BYTES,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            # That of hiredis copies all of a command several times, which takes ten times as long for large buffers.
            "command_packer": _PartsPacker(),
        }
        try:
            pool = Redis.from_url(url).connection_pool
            pool.connection_class(**pool.connection_kwargs)  # Its options are looked at here.
        except (ValueError, TypeError):
            # Neither the URL nor what is wrong with it is shown: parts may be of a password.
            raise ConfigError(
                "the URL of Redis is wrong: write redis://HOST:PORT/0, rediss:// or unix://PATH; in a password, write %2F for /, %23 for # and so on"
            ) from None

    @property
    def where(self) -> str:
        """As `address_of`."""
        return address_of(self._url)

    def connect(self, patience: float = 1.0) -> Any:
        """A client, of the kind of server that it is. Raises what the library raises.

        Args: patience: how many times `timeout_s` it waits for an answer. Typed as Any: the library's types allow for answers of its asynchronous
        clients.
        """
        timeout_s = patience * self._options["socket_timeout"]
        options = self._options | {"socket_timeout": timeout_s}
        client: Any = Redis.from_url(self._url, parser_class=_BoundedParser, driver_info=None, **options)
        if not client.info("cluster").get("cluster_enabled"):
            return client
        client.close()
        # A node that does not answer is waited for up to three times, for each piece of an answer: the client asks where its slots are.
        return RedisCluster.from_url(self._url, **options | {"socket_timeout": timeout_s / 2})


def address_of(url: str) -> str:
    """Return where the Redis of a URL is, without user and password.

    >>> address_of("rediss://user:secret@cache.example:7000/0"), address_of("redis://localhost"), address_of("unix:///run/r.sock?password=p")
    ('cache.example:7000', 'localhost:6379', '/run/r.sock')
    """
    parts = urlsplit(url)
    return parts.path if parts.scheme == "unix" else f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
