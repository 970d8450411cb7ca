"""Base of all service clients: the connection, and the calls that several services have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from modyn.config.base import Problem
from modyn.config.system_sections.endpoint import Endpoint
from modyn.proto import common_pb2
from modyn.registry import Plugin
from modyn.rpc.channel import Channel
from modyn.rpc.wire import from_message, to_struct


class ServiceClient:
    """Connection to a service. Thread-safe. Calls raise only errors of `modyn.errors`."""

    _Stub: ClassVar[type[Any]]
    """Generated gRPC stub class."""
    _not_repeatable: ClassVar[frozenset[str]] = frozenset()
    """Calls that must not be repeated after a lost answer."""

    def __init__(self, endpoint: Endpoint, wait_s: float = 10.0) -> None:
        """Args: wait_s: longest time that a call waits for an unavailable service."""
        self._channel = Channel(endpoint, wait_s=wait_s, not_repeatable=self._not_repeatable)
        self._stub = self._Stub(self._channel)
        self._retrier = self._channel.retrier
        """Repeats calls that the channel does not repeat: streams, and calls whose repetition needs a condition."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def plugins(self) -> list[Plugin]:
        """List the plug-ins of the service, both built-in ones and the plug-ins of user packages."""
        return [from_message(plugin, Plugin) for plugin in self._stub.ListPlugins(common_pb2.Empty()).plugins]


class SectionClient(ServiceClient):
    """Client of a service that uses sections of the pipeline file."""

    def validate(self, pipeline: Mapping[str, Any]) -> list[Problem]:
        """List the problems in the sections of a pipeline that this service uses. Args: pipeline: the whole pipeline."""
        reply = self._stub.ValidateSection(common_pb2.SectionRequest(pipeline=to_struct(pipeline)))
        return [from_message(problem, Problem) for problem in reply.problems]
