"""Access to a service: from outside this machine only with TLS and a token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from modyn.config.endpoint import Endpoint
from modyn.errors import ConfigError, SecurityError
from modyn.rpc.logs import get_logger


def check_exposure(name: str, endpoint: Endpoint) -> None:
    """Raise SecurityError when `endpoint` is off loopback and not protected by TLS and a token."""
    security = endpoint.security
    missing = [what for what, given in (("tls_cert and tls_key", security.tls_cert), ("token", security.secret())) if not given]
    if missing and not endpoint.is_local:
        raise SecurityError(
            f"{name} will not listen on {endpoint.address}, which other machines can reach, without {' and '.join(missing)}; "
            f"set them under security: in the system file, or bind it to 127.0.0.1"
        )


def read_pem(path: Path, field: str) -> bytes:
    """Read the file `path`, which `security.FIELD` names. Raises: ConfigError: it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"security.{field}: cannot read {path}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Certificates:
    """What one side of a TLS connection shows and trusts, as PEM. chain, key: None shows nothing. authority: of the peer; None: it needs none."""

    chain: bytes | None
    key: bytes | None
    authority: bytes | None


def server_certificates(endpoint: Endpoint) -> Certificates | None:
    """Read what a server shows; None for Unix sockets and where TLS is not configured. Raises: ConfigError: a file cannot be read."""
    security = endpoint.security
    if endpoint.is_unix or security.tls_cert is None or security.tls_key is None:
        return None
    authority = None if security.client_ca is None else read_pem(security.client_ca, "client_ca")
    return Certificates(read_pem(security.tls_cert, "tls_cert"), read_pem(security.tls_key, "tls_key"), authority)


def client_certificates(endpoint: Endpoint) -> Certificates | None:
    """Read what a client trusts, the configured authority or else the server's own certificate, and what it shows where it is asked.

    None: no TLS at this endpoint. Raises: ConfigError: a file cannot be read.
    """
    security = endpoint.security
    authority = security.tls_ca or security.tls_cert
    if endpoint.is_unix or authority is None:
        return None
    if security.tls_cert is None or security.tls_key is None:
        return Certificates(None, None, read_pem(authority, "tls_ca"))
    return Certificates(
        read_pem(security.tls_cert, "tls_cert"), read_pem(security.tls_key, "tls_key"), read_pem(authority, "tls_ca")
    )


class FreshCertificates:
    """Certificates of one side, read again when one of their files has changed. Thread-safe.

    Raises: ConfigError: a file cannot be read at first. Later that is logged, and what was read before holds.
    """

    def __init__(self, endpoint: Endpoint, read: Callable[[Endpoint], Certificates | None]) -> None:
        self._endpoint, self._read = endpoint, read
        security = endpoint.security
        self._files = [path for path in (security.tls_cert, security.tls_key, security.tls_ca, security.client_ca) if path]
        # Before the files: what changes meanwhile is read again.
        self._last = (version_of(*self._files), read(endpoint))

    def newest(self) -> Certificates | None:
        """Return what the files hold now: the same object as before unless one has changed. None: no TLS at this endpoint."""
        before, certificates = self._last
        version = version_of(*self._files)
        if version != before:
            try:
                certificates = self._read(self._endpoint)
            except ConfigError as error:
                get_logger("security").warning("certificates_not_read_again", error=error.message)
            self._last = (version, certificates)
        return certificates


def version_of(*files: Path) -> tuple[tuple[int, ...], ...]:
    """Return what changes with the content of `files`; empty parts for those that are not there."""
    return tuple(map(_version, files))


def _version(file: Path) -> tuple[int, ...]:
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


def server_credentials(endpoint: Endpoint) -> grpc.ServerCredentials | None:
    """TLS for a server, with the certificate as it is at each connection; None for Unix sockets and where TLS is not configured."""
    fresh = FreshCertificates(endpoint, server_certificates)
    shown = fresh.newest()
    if shown is None:
        return None

    def changed() -> Any:  # None, which the stubs lack, keeps what was shown
        nonlocal shown
        newest = fresh.newest()
        if newest is shown or newest is None:
            return None
        shown = newest
        return _configuration(newest)

    return grpc.dynamic_ssl_server_credentials(_configuration(shown), changed, shown.authority is not None)


def _configuration(shown: Certificates) -> grpc.ServerCertificateConfiguration:
    assert shown.key is not None
    assert shown.chain is not None
    return grpc.ssl_server_certificate_configuration([(shown.key, shown.chain)], shown.authority)
