"""Addresses of services, and the settings that a client needs to call a service."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import tempfile
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator

from modyn.config.base import Section
from modyn.config.system_sections.security import SecurityConfig

_UNIX_PATH_LIMIT = 80
"""Largest length of the path of a socket folder, in bytes. The kernel allows 107 bytes in a socket's path, which includes the name of the socket."""


def socket_folder(folder: Path, name: str, prefix: str) -> Path:
    """Return the path of `name` in `folder`, or of a temporary folder if this path is too long for sockets. Args: prefix: start of the temporary
    folder's name.
    """
    if len(os.fsencode(folder / name)) <= _UNIX_PATH_LIMIT:
        return folder / name
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"{prefix}-{os.getuid()}-{digest}"


def _check_address(value: str) -> str:
    if value.startswith("unix:"):
        return value
    host, separator, port = value.rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ValueError(f"{value!r} is not an address; write host:port, for example 127.0.0.1:50051, or unix:/path")
    return value


Address = Annotated[str, AfterValidator(_check_address)]


class Endpoint(Section):
    """The address of a service, and the credentials and limits of its calls."""

    address: str
    security: SecurityConfig = SecurityConfig()
    max_message_bytes: int = 32 * 2**20

    @property
    def is_unix(self) -> bool:
        """Return whether the address is a Unix socket."""
        return self.address.startswith("unix:")

    @property
    def is_local(self) -> bool:
        """Return whether only this machine can reach the address: a Unix socket or a loopback address."""
        host = self.address.rsplit(":", 1)[0].strip("[]")
        if self.is_unix or host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:  # A name such as 127.example.org may resolve to any address.
            return False


def with_password(url: str, password: str) -> str:
    """Return a URL with this password.

    >>> with_password("rediss://me@redis:6379/0?ssl_ca_certs=/ca.crt", "a/b"), with_password("unix:///run/r.sock", "c")
    ('rediss://me:a%2Fb@redis:6379/0?ssl_ca_certs=/ca.crt', 'unix://:c@/run/r.sock')
    """
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    name = user.partition(":")[0]
    return parts._replace(netloc=f"{name}:{quote(password, safe='')}@{host}").geturl()
