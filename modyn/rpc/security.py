"""Security of a service: other machines reach it only over TLS and with a token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from modyn.config.system_sections.endpoint import Endpoint
from modyn.errors import ConfigError, SecurityError
from modyn.rpc.logs import get_logger


def check_exposure(name: str, endpoint: Endpoint) -> None:
    """Raise SecurityError if other machines can reach `endpoint` without TLS or without a token."""
    security = endpoint.security
    missing = [what for what, given in (("tls_cert and tls_key", security.tls_cert), ("token", security.secret())) if not given]
    if missing and not endpoint.is_local:
        raise SecurityError(
            f"{name} will not listen on {endpoint.address}, which other machines can reach, without {' and '.join(missing)}; "
            f"set them under security: in the system file, or bind it to 127.0.0.1"
        )


def read_pem(path: Path, field: str) -> bytes:
    """Read a file that `security.FIELD` names. Raises ConfigError: the file cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"security.{field}: cannot read {path}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Certificates:
    """Certificates of one side of a TLS connection, as PEM. chain, key: certificate chain and private key of this side; None: this side has none.
    authority: authority that must have signed the peer's certificate; None: the peer needs no certificate.
    """

    chain: bytes | None
    key: bytes | None
    authority: bytes | None


def server_certificates(endpoint: Endpoint) -> Certificates | None:
    """Read a server's certificates; None: the server has a Unix socket, or no TLS. Raises ConfigError: a file cannot be read."""
    security = endpoint.security
    if endpoint.is_unix or security.tls_cert is None or security.tls_key is None:
        return None
    authority = None if security.client_ca is None else read_pem(security.client_ca, "client_ca")
    return Certificates(read_pem(security.tls_cert, "tls_cert"), read_pem(security.tls_key, "tls_key"), authority)


def client_certificates(endpoint: Endpoint) -> Certificates | None:
    """Read a client's certificates. The client trusts the configured authority, or else the server's own certificate.

    Returns: the certificates; None: this endpoint has no TLS. Raises: ConfigError: a file cannot be read.
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
    """Certificates of one side of a connection. After a change of the certificate files, the files are read again. Thread-safe.

    Raises: ConfigError: a file cannot be read. A later error is logged, and the last good content stays in use.
    """

    def __init__(self, endpoint: Endpoint, read: Callable[[Endpoint], Certificates | None]) -> None:
        self._endpoint, self._read = endpoint, read
        security = endpoint.security
        self._files = [path for path in (security.tls_cert, security.tls_key, security.tls_ca, security.client_ca) if path]
        # The version is read before the content, so that a change in between causes another read. The tuple is replaced as a whole, so that readers
        # need no lock.
        self._last = (version_of(*self._files), read(endpoint))

    def newest(self) -> Certificates | None:
        """Return the current certificates. The same object is returned until a file changes. None: this endpoint has no TLS."""
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
    """Return a value that changes with the content of `files`. The entry of a missing file is empty."""
    return tuple(map(_version, files))


def _version(file: Path) -> tuple[int, ...]:
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


def server_credentials(endpoint: Endpoint) -> grpc.ServerCredentials | None:
    """Return TLS credentials for a server. Each new connection uses the current certificate. None: the server has a Unix socket, or no TLS."""
    fresh = FreshCertificates(endpoint, server_certificates)
    shown = fresh.newest()
    if shown is None:
        return None

    def changed() -> Any:  # returning None, which the type stubs omit, keeps the certificate
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
