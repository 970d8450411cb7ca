"""Base of all service clients: the connection, and the calls that several services answer alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from modyn.config.base import Problem
from modyn.config.endpoint import Endpoint
from modyn.proto import common_pb2
from modyn.registry import Plugin
from modyn.rpc.channel import Channel
from modyn.rpc.wire import from_message, to_struct


class ServiceClient:
    """One connection to a service, safe to share between threads. Every call raises from `modyn.errors` only."""

    _Stub: ClassVar[type[Any]]
    """The generated class that makes the calls."""
    _not_repeatable: ClassVar[frozenset[str]] = frozenset()
    """Calls that must not be made twice when the answer to the first one got lost."""

    def __init__(self, endpoint: Endpoint, wait_s: float = 10.0) -> None:
        """`wait_s`: how long a call waits for a service that cannot be reached."""
        self._channel = Channel(endpoint, wait_s=wait_s, not_repeatable=self._not_repeatable)
        self._stub = self._Stub(self._channel)
        self._retrier = self._channel.retrier
        """Repeats what the channel does not repeat by itself: streams, and calls that are only repeatable in a certain way."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def plugins(self) -> list[Plugin]:
        """List the plug-ins that are installed where the service runs: Modyn's, and those of user packages."""
        return [from_message(plugin, Plugin) for plugin in self._stub.ListPlugins(common_pb2.Empty()).plugins]


class SectionClient(ServiceClient):
    """A client of a service that acts on sections of the pipeline file."""

    def validate(self, pipeline: Mapping[str, Any]) -> list[Problem]:
        """List the mistakes in the sections of a whole pipeline that this service acts on."""
        reply = self._stub.ValidateSection(common_pb2.SectionRequest(pipeline=to_struct(pipeline)))
        return [from_message(problem, Problem) for problem in reply.problems]
