"""Guard of every HTTP server of Modyn. The guard checks the headers of a request before anything else.

If no token is needed, a web page that the user of this machine opens can send requests to loopback: by a form, by `fetch`, or, if its name resolves
to 127.0.0.1 ("DNS rebinding"), as the server's own page. The browser's headers `Host`, `Origin` and `Sec-Fetch-Site` show that a request comes from
such a page.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from modyn.errors import InvalidArgumentError, SecurityError

MAX_HEAD_BYTES: Final = 64 * 2**10
"""Largest size of the request line and the headers together."""
_ONCE: Final = frozenset(
    {
        *(b"host", b"authorization", b"origin", b"sec-fetch-site", b"transfer-encoding", b"content-length", b"content-type"),
        *(b"content-encoding", b"inference-header-content-length"),
    }
)
"""Headers that a proxy and this server could interpret differently if a request contained them twice."""
_HOST: Final = re.compile(rb"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:[0-9]{0,5})?", re.IGNORECASE)
_MAX_KNOWN: Final = 64
"""Largest number of remembered values of `Host`, so that clients cannot fill the memory with new values."""


class HttpGuard:
    """Checks the headers of requests. Thread-safe.

    Rule: the header `Host` occurs once. If no token is needed, `Host` is a name or address of this server, and no page of another site causes the
    request.

    Args: own: address or name that the server listens on. needs_token: whether each request needs a token. allowed_hosts: further allowed values of
    `Host` without a port, in addition to `own`, loopback addresses and `localhost`; if given, `Host` is checked even if a token is needed. setting:
    field of the system file with these hosts, for errors.
    """

    def __init__(
        self, own: str, needs_token: bool, allowed_hosts: Sequence[str] = (), setting: str = "serving.allowed_hosts"
    ) -> None:
        names = {host.lower().strip("[]") for host in (own, "localhost", *allowed_hosts)}
        self._names = None if needs_token and not allowed_hosts else names
        self.is_open = not needs_token
        self._setting = setting
        self._known = frozenset[bytes]()  # values of `Host` that passed the check; replaced as a whole, so no lock is needed

    def check(self, headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
        """Return the headers of a request by name. Args: headers: names in lower case.

        Raises: InvalidArgumentError: `Host` is missing or wrong, or a header of `_ONCE` occurs twice. SecurityError: the request is for another
        host, or comes from a page of another origin.
        """
        found = dict(headers)
        if len(found) < len(headers):
            _check_once(headers)
        host = found.get(b"host", b"")
        if host not in self._known:
            self._check_host(host)
        if self.is_open and (b"origin" in found or b"sec-fetch-site" in found):
            _check_page(found, host)
        return found

    def _check_host(self, host: bytes) -> None:
        matched = _HOST.fullmatch(host)
        if matched is None:
            raise InvalidArgumentError(
                "the request has no Host, or one that is not NAME or NAME:PORT; send the name of this server"
            )
        name = matched[1].decode().lower().strip("[]")
        if self._names is not None and name not in self._names and not _is_loopback(name):
            raise SecurityError(
                f"this server is not known as {name!r}; call it by its own address, or add the name to {self._setting} in the system file"
            )
        if len(self._known) < _MAX_KNOWN:
            self._known |= {host}


def _check_once(headers: Sequence[tuple[bytes, bytes]]) -> None:
    for name, count in Counter(name for name, _ in headers).items():
        if count > 1 and name in _ONCE:
            raise InvalidArgumentError(f"the request has {count} headers {name.decode()}; send one")


def _check_page(headers: dict[bytes, bytes], host: bytes) -> None:
    """Raise SecurityError for a browser's request from a page of another server."""
    origin = headers.get(b"origin")
    is_own = origin is None or origin.partition(b"://")[2].lower() == host.lower()
    if not is_own or headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
        page = "elsewhere" if origin is None else origin[:200].decode("latin-1")
        raise SecurityError(
            f"the request comes from a web page of {page!r}, and this server, which asks for no token, answers none; set security.token in the "
            "system file, and let a program on the page's own server call this one with it"
        )


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
