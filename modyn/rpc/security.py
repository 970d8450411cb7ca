"""Access to a service: from outside this machine only with TLS and a token."""

from __future__ import annotations

from pathlib import Path

import grpc

from modyn.config.endpoint import Endpoint
from modyn.errors import ConfigError, SecurityError


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


def server_credentials(endpoint: Endpoint) -> grpc.ServerCredentials | None:
    """TLS for a server, none for Unix sockets and where TLS is not configured."""
    security = endpoint.security
    if endpoint.is_unix or security.tls_cert is None or security.tls_key is None:
        return None
    return grpc.ssl_server_credentials([(read_pem(security.tls_key, "tls_key"), read_pem(security.tls_cert, "tls_cert"))])


def root_certificates(endpoint: Endpoint) -> bytes | None:
    """What a client trusts: the configured authority, else the server's own certificate. None: no TLS at this endpoint."""
    security = endpoint.security
    authority = security.tls_ca or security.tls_cert
    if endpoint.is_unix or authority is None:
        return None
    return read_pem(authority, "tls_ca")
