"""Routing of a request to a version. The routing table is immutable. Pure functions choose a version from a table and make the next table."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

from modyn.errors import ConflictError, InvalidArgumentError, NotFoundError, UnavailableError
from modyn.records import VersionRole
from modyn.registry import nearest

V = TypeVar("V")
"""Type of a loaded version. The table stores and returns the object, but does not use it."""


@dataclass(frozen=True, slots=True)
class Canary:
    """A version that answers a share of the requests that name no version."""

    version: str
    share: float
    """Share of the requests, in [0, 1]."""


@dataclass(frozen=True, slots=True)
class ModelRoutes(Generic[V]):
    """The versions of one model that can answer."""

    versions: Mapping[str, V] = field(default_factory=dict)
    """All warm versions, by name. Requests may name any of them."""
    serving: str | None = None
    """The version that answers requests that name no version."""
    canary: Canary | None = None
    shadow: str | None = None
    """The version that gets copies of the requests that the serving version or the canary answers."""

    @property
    def roles(self) -> dict[VersionRole, str]:
        """The versions in use, by role."""
        canary = None if self.canary is None else self.canary.version
        in_use = {VersionRole.SERVING: self.serving, VersionRole.CANARY: canary, VersionRole.SHADOW: self.shadow}
        return {role: version for role, version in in_use.items() if version is not None}


class Route(NamedTuple, Generic[V]):
    """Destination of a request."""

    version: str
    target: V
    role: VersionRole
    shadow: V | None = None


@dataclass(frozen=True, slots=True)
class RoutingTable(Generic[V]):
    """Routes of all models, by model name. A change makes a new table, so a reader always sees a consistent table."""

    models: Mapping[str, ModelRoutes[V]] = field(default_factory=dict)

    def routes(self, model: str) -> ModelRoutes[V]:
        """Return the routes of a model. Raises NotFoundError."""
        if model not in self.models:
            names = sorted(self.models)
            raise NotFoundError(
                f"there is no model '{model}'{nearest(model, names) or ''}; served here: {', '.join(names) or 'none'}"
            )
        return self.models[model]

    def roles(self, model: str) -> dict[VersionRole, str]:
        """Return the versions of a model that are in use, by role. The result is empty if the model is unknown."""
        return self.models[model].roles if model in self.models else {}

    def route(self, model: str, version: str | None, request_id: str) -> Route[V]:
        """Choose the destination of a request: the version that the request names, or else the canary or the serving version.

        The request id determines whether the canary or the serving version answers, as long as the table has the same canary and share.
        Raises: NotFoundError: there is no such model or version. UnavailableError: no version of the model serves yet.
        """
        routes = self.routes(model)
        # A request that names a version reaches any warm version, and has no shadow.
        if version is not None:
            return Route(version, _warm(model, routes, version), VersionRole.PINNED)
        if routes.serving is None:
            raise UnavailableError(
                f"no version of model '{model}' serves yet: it is still loading, or none is promoted; ask again later"
            )
        chosen, canary, role = routes.serving, routes.canary, VersionRole.SERVING
        if canary is not None and share_of(request_id) < canary.share:
            chosen, role = canary.version, VersionRole.CANARY
        # A version is not a shadow of itself.
        shadow = routes.shadow
        return Route(chosen, routes.versions[chosen], role, None if shadow in (None, chosen) else routes.versions[str(shadow)])

    def serving(self, model: str) -> V:
        """Return the serving version of a model. Raises NotFoundError; UnavailableError: no version serves yet."""
        return self.route(model, self.routes(model).serving, "").target

    def with_version(self, model: str, version: str, target: V) -> RoutingTable[V]:
        """Add a warm version. Only requests that name the version reach it."""
        routes = self.models.get(model, ModelRoutes())
        return self._with(model, replace(routes, versions={**routes.versions, version: target}))

    def with_serving(self, model: str, version: str) -> RoutingTable[V]:
        """Let a warm version serve. The version is then no longer canary or shadow. Raises NotFoundError."""
        routes = self.routes(model)
        _warm(model, routes, version)
        canary = None if routes.canary is not None and routes.canary.version == version else routes.canary
        return self._with(model, replace(routes, serving=version, canary=canary, shadow=_unless(routes.shadow, version)))

    def with_canary(self, model: str, canary: Canary | None) -> RoutingTable[V]:
        """Let a warm version answer a share of the requests; None: remove the canary. Raises NotFoundError, InvalidArgumentError."""
        routes = self.routes(model)
        if canary is not None:
            _warm(model, routes, canary.version)
            if not 0 <= canary.share <= 1:
                raise InvalidArgumentError(f"the share of a canary is {canary.share}; write one from 0 to 1")
        return self._with(model, replace(routes, canary=canary))

    def with_shadow(self, model: str, version: str | None) -> RoutingTable[V]:
        """Send a warm version copies of the requests; None: remove the shadow. Raises NotFoundError."""
        routes = self.routes(model)
        if version is not None:
            _warm(model, routes, version)
        return self._with(model, replace(routes, shadow=version))

    def without_version(self, model: str, version: str) -> RoutingTable[V]:
        """Remove a version. Raises NotFoundError; ConflictError: the version serves, or is canary or shadow."""
        routes = self.routes(model)
        _warm(model, routes, version)
        used = {
            "serves": routes.serving,
            "is the canary": routes.canary and routes.canary.version,
            "is the shadow": routes.shadow,
        }
        for how, name in used.items():
            if name == version:
                raise ConflictError(f"version {version} of model '{model}' {how}; let another one take its place first")
        return self._with(model, replace(routes, versions={name: t for name, t in routes.versions.items() if name != version}))

    def _with(self, model: str, routes: ModelRoutes[V]) -> RoutingTable[V]:
        return RoutingTable({**self.models, model: routes})


def share_of(request_id: str) -> float:
    """Return a number in [0, 1) that depends on the request id alone, uniformly distributed over ids.

    >>> share_of("a") == share_of("a"), 0 <= share_of("b") < 1
    (True, True)
    """
    return int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=7).digest(), "big") / 2**56


def to_retire(routes: ModelRoutes[V], order: Mapping[str, int], standby: int) -> list[str]:
    """Return the versions to unload. These are all versions that are not in use, except the `standby` versions that served most recently.

    Args: order: for each version, a number that rises with the time at which the version served last. standby: number of versions that are kept for a
    quick rollback.
    """
    used = set(routes.roles.values())
    idle = sorted((name for name in routes.versions if name not in used), key=lambda name: order.get(name, -1), reverse=True)
    return idle[standby:]


def _warm(model: str, routes: ModelRoutes[V], version: str) -> V:
    if version not in routes.versions:
        known = list(routes.versions)
        raise NotFoundError(
            f"model '{model}' has no version {version} that is loaded{nearest(version, known) if len(version) > 2 else ''}; "
            f"loaded are {', '.join(known) or 'none'}; pin it with `modyn serve --pin {version}`, or promote it"
        )
    return routes.versions[version]


def _unless(version: str | None, other: str) -> str | None:
    return None if version == other else version
