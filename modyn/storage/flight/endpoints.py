"""The payload servers of a client: their availability, idle connections for reuse, and the mean size of their samples."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from pyarrow import flight

from modyn.config.system_sections.endpoint import Endpoint
from modyn.rpc.security import client_certificates
from modyn.rpc.status import TOKEN_KEY
from modyn.storage.flight.protocol import location

WINDOW_BYTES = 2 * 2**20
"""Largest number of bytes that gRPC receives before they are read. This number is fixed, so that the memory of a client is bounded."""

REQUEST_DEADLINE_S = 600.0
"""Deadline in seconds of one request of some megabytes. After the deadline the server drops the unread answer. If the consumer reads more slowly, the
fetch repeats the request.
"""

# The first pause hardly delays a fetch after one connection breaks. The last pause bounds the wait after an endpoint has recovered, and prevents
# thousands of workers from overloading a starting server. Both pauses are far below `retry_s`, so every endpoint is tried many times.
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 1.0

_CHANNEL = [
    # Each client has its own channel, so that a new client does not inherit the backoff of an older client.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Despite its name, this option limits the time to make a connection.
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    ("grpc.http2.bdp_probe", 0),
]


@dataclass(slots=True)
class _Peer:
    endpoint: Endpoint
    idle: list[flight.FlightClient] = field(default_factory=list)
    pause_s: float = _FIRST_PAUSE_S
    retry_at: float = 0.0
    avoid_until: float = 0.0


class EndpointPool:
    """The endpoints of one client, by their index. Thread-safe. A connection serves one call at a time."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.sample_bytes: dict[tuple[str, bool], float] = {}
        """Mean size of samples in the latest answer, by (dataset, whether payloads have bytes)."""
        self._lock = Lock()  # Protects the idle connections and the times of all peers.
        self._closed = False
        self._peers = list(map(_Peer, endpoints))
        self._turns = itertools.count(os.getpid())  # Clients of several processes begin with different endpoints.

    def __len__(self) -> int:
        return len(self._peers)

    @property
    def max_message_bytes(self) -> int:
        """The largest request that all endpoints accept."""
        return min(peer.endpoint.max_message_bytes for peer in self._peers)

    def address(self, index: int) -> str:
        """The address of an endpoint, for messages."""
        return self._peers[index].endpoint.address

    def next_turn(self) -> int:
        """Return the endpoint at which the next fetch begins."""
        return next(self._turns) % len(self._peers)

    def choose(self, preferred: int) -> int:
        """Return the endpoint to try now: the first endpoint from `preferred` on that is not avoided. If all endpoints are avoided, return the
        endpoint whose pause ends first.
        """
        now = time.monotonic()
        order = [(preferred + i) % len(self._peers) for i in range(len(self._peers))]
        with self._lock:
            good = next((index for index in order if self._peers[index].avoid_until <= now), None)
            return good if good is not None else min(order, key=lambda index: self._peers[index].retry_at)

    def pause_s(self) -> float:
        """Return the seconds until an endpoint may be tried."""
        with self._lock:
            return max(0.0, min(peer.retry_at for peer in self._peers) - time.monotonic())

    def mark_failed(self, index: int, avoid_s: float) -> None:
        """Avoid the endpoint for `avoid_s` seconds while another endpoint is available. Idle connections to the endpoint are closed, because they are
        probably broken too.
        """
        now = time.monotonic()
        with self._lock:
            peer = self._peers[index]
            broken, peer.idle = peer.idle, []
            if now >= peer.retry_at:  # The pause doubles once for all calls that break together.
                peer.retry_at, peer.pause_s = now + peer.pause_s, min(2 * peer.pause_s, _LAST_PAUSE_S)
            peer.avoid_until = max(peer.avoid_until, now + max(avoid_s, peer.pause_s))
        for client in broken:
            client.close()

    def mark_answered(self, index: int) -> None:
        """Record that the endpoint answered. The endpoint is no longer avoided, and its next pause is as short as the first."""
        with self._lock:
            peer = self._peers[index]
            peer.pause_s, peer.retry_at, peer.avoid_until = _FIRST_PAUSE_S, 0.0, 0.0

    def take(self, index: int) -> tuple[flight.FlightClient, flight.FlightCallOptions]:
        """Return a connection for one call, and the options of the call. If the endpoint is unavailable, the call fails, not this method."""
        peer = self._peers[index]
        secret = peer.endpoint.security.secret()  # The secret is read for each call, because its file may have changed.
        headers = [] if secret is None else [(TOKEN_KEY.encode(), b"Bearer " + secret.encode())]
        options = flight.FlightCallOptions(timeout=REQUEST_DEADLINE_S, headers=headers)
        with self._lock:
            if peer.idle:
                return peer.idle.pop(), options
        settings: dict[str, Any] = {"generic_options": _CHANNEL}
        certificates = client_certificates(peer.endpoint)
        if certificates is not None:
            settings["tls_root_certs"] = certificates.authority
            if certificates.chain is not None:
                settings |= {"cert_chain": certificates.chain, "private_key": certificates.key}
        return flight.FlightClient(location(peer.endpoint), **settings), options

    def give_back(self, index: int, client: flight.FlightClient) -> None:
        """Keep `client`, a connection to endpoint `index` whose call was successful, for the next call."""
        with self._lock:
            if not self._closed:
                self._peers[index].idle.append(client)
                return
        client.close()

    def close(self) -> None:
        """Close idle connections now, and connections in use when they are given back."""
        with self._lock:
            self._closed = True
            idle = [client for peer in self._peers for client in peer.idle]
            for peer in self._peers:
                peer.idle = []
        for client in idle:
            client.close()
