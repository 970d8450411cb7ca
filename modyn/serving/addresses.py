"""Addresses that a serving process listens on, computed from the configuration. This module imports no model and no server."""

from __future__ import annotations

import socket
from typing import Final

from modyn.config.system import SystemConfig
from modyn.config.system_sections.endpoint import Endpoint
from modyn.errors import UnavailableError
from modyn.rpc.security import check_exposure

_LEAST_MESSAGE_BYTES: Final = 2**16
_PORTS: Final = ("http_port", "grpc_port", "metrics_port")


def serving_endpoint(config: SystemConfig, port: int) -> Endpoint:
    """Return the endpoint of `serving.host` with a port, with brackets around an IPv6 address."""
    host = config.serving.host.strip("[]")
    return Endpoint(
        address=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        security=config.security,
        max_message_bytes=max(config.serving.max_message_bytes, _LEAST_MESSAGE_BYTES),
    )


def check_addresses(config: SystemConfig) -> None:
    """Check that a serving process can listen on all of its addresses, and that each address is safe.

    Raises: SecurityError: an address is unsafe. UnavailableError: an address is taken, or does not belong to this machine.
    """
    for field in _PORTS:
        endpoint = serving_endpoint(config, getattr(config.serving, field))
        check_exposure("serving", endpoint)
        bound_socket(endpoint, field).close()


def bound_socket(endpoint: Endpoint, field: str = "http_port") -> socket.socket:
    """Return a socket that is bound to an address. Args: field: field of section `serving` that error messages name. Raises: UnavailableError: the
    address is taken.
    """
    host, port = endpoint.address.rsplit(":", 1)
    host = host.strip("[]")
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        # The kernel may still know connections of a killed process. With SO_REUSEADDR, those connections do not prevent this process from listening.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, int(port)))
    except OSError as error:
        found.close()
        raise UnavailableError(
            f"serving cannot listen on {host}:{port}: {error.strerror}; stop what uses it or set serving.{field}"
        ) from error
    return found
