"""Addresses of a serving process, by its configuration."""

from __future__ import annotations

import pytest

from modyn.config.serving import ServingConfig
from modyn.config.system import SystemConfig
from modyn.serving.addresses import bound_socket, check_addresses, serving_endpoint
from tests.support.ipv6 import needs_ipv6


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1:0"),
        ("localhost", "localhost:0"),
        pytest.param("::1", "[::1]:0", marks=needs_ipv6),
        pytest.param("[::1]", "[::1]:0", marks=needs_ipv6),
    ],
)
def test_a_host_is_a_name_or_an_address_of_either_kind(host: str, address: str) -> None:
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    config = SystemConfig(serving=ServingConfig(host=host, **ports))
    check_addresses(config)
    endpoint = serving_endpoint(config, 0)
    assert (endpoint.address, endpoint.is_local) == (address, True)
    with bound_socket(endpoint) as found:
        assert found.getsockname()[1] > 0
