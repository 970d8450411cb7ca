"""Find a policy by its id.

Built-in policies are listed in the dictionary of their package as import paths, so that each is imported when it is used. A user's
package adds to the same registry through an entry point of the registry's group (for example `modyn.triggers`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from modyn.errors import ConfigError, ModynError

T = TypeVar("T")


def nearest(name: str, names: list[str]) -> str:
    """Return `, did you mean 'X'?` with the nearest of `names`; empty if none is near.

    A name that is very close comes first, then one that contains `name` or is contained in it, then any other that is similar.
    """

    def nearness(other: str) -> tuple[int, float]:
        short, long = sorted((name.lower(), other.lower()), key=len)
        ratio = difflib.SequenceMatcher(None, short, long).ratio()
        if ratio >= 0.85:
            return 3, ratio
        if len(short) >= 3 and short in long:
            return 2, ratio
        return int(ratio >= 0.5), ratio

    best = max(names, key=nearness, default=None)
    return f", did you mean '{best}'?" if best is not None and nearness(best)[0] else ""


def load_object(path: str) -> object:
    """Import the object `package.module:name` (or `package.module.name`). Raises ConfigError if there is none."""
    module_name, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    if not module_name or not attribute:
        raise ConfigError(f"'{path}' is not an importable name; write 'package.module:name'")
    try:
        found: object = import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot import '{path}': {error}; install the package in the environment of the service") from error
    return found


@dataclass(frozen=True, slots=True)
class Plugin:
    """One registered id, the import path of its object, and the distribution that provides it."""

    group: str
    id: str
    path: str
    distribution: str
    problem: str = ""
    """Why it cannot be used, as far as is known; empty: nothing is known to be wrong."""


@dataclass
class Registry(Generic[T]):
    """Objects of one kind by id. `builtin` maps ids to import paths (`package.module:Name`). A broken plug-in fails only what names it."""

    group: str
    kind: str
    """Name of one object in messages, e.g. `trigger`."""
    builtin: Mapping[str, str] = field(default_factory=dict)
    not_yet: Sequence[str] = ()
    """Ids of the pipeline format that are not available yet; a package may provide them."""
    has_options: bool = True
    """Whether each object has a class `Config` of its options."""

    @cached_property
    def plugins(self) -> dict[str, Plugin]:
        """All plugins by id, those of installed packages included. One whose id two packages register has that problem."""
        found = {id_: Plugin(self.group, id_, path, "modyn") for id_, path in self.builtin.items()}
        for plugin in self._installed():
            if plugin.id in self.builtin:
                continue
            first = found.setdefault(plugin.id, plugin)
            if first is not plugin:
                twice = f"registered twice, by {first.distribution} ({first.path}) and {plugin.distribution} ({plugin.path})"
                found[plugin.id] = replace(
                    first, problem=f"{self.kind} '{plugin.id}' is {twice}; rename one or uninstall the package"
                )
        return found

    def listed(self) -> list[Plugin]:
        """All plugins, and those of packages that take the name of a built-in, which cannot be named and say so."""
        taken = [
            replace(
                plugin,
                problem=f"{self.kind} '{plugin.id}' of package {plugin.distribution} ({plugin.path}) takes the name of a built-in "
                "one, which is used: rename it or uninstall the package",
            )
            for plugin in self._installed()
            if plugin.id in self.builtin
        ]
        return sorted([*self.plugins.values(), *taken], key=lambda plugin: plugin.id)

    def _installed(self) -> list[Plugin]:
        return [Plugin(self.group, entry.name, entry.value, _distribution(entry)) for entry in entry_points(group=self.group)]

    def problem(self, id_: str) -> str:
        """Why the object of a registered id cannot be used; empty: it can. Imports it."""
        try:
            found = self.get(id_)
        except ConfigError as error:
            return error.message
        # A registry may know more names than are registered: that of metrics knows torchmetrics.
        plugin = self.plugins.get(id_)
        if plugin is None or not self.has_options or hasattr(getattr(found, "Config", None), "model_fields"):
            return ""
        return (
            f"the {self.kind} {plugin.path} has no class `Config` of its options, a modyn.config.base.Section: correct the package "
            f"{plugin.distribution}, which registers it"
        )

    def preload(self) -> str:
        """Import what is built in and look through the installed packages once, for the processes that are forked from this one.

        Returns: what is known to be wrong with the installed packages; empty: nothing. The process that needs one of them raises it.
        """
        for path in self.builtin.values():
            load_object(path)
        return "; ".join(plugin.problem for plugin in self.listed() if plugin.problem)

    def ids(self) -> list[str]:
        """All ids, sorted."""
        return sorted(self.plugins)

    def names(self) -> list[str]:
        """Everything that `get` accepts, where that is more than the ids; for the nearest name."""
        return self.ids()

    def choices(self) -> str:
        """Ids that `get` accepts, for messages."""
        return ", ".join(self.ids())

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids())

    def __contains__(self, id_: object) -> bool:
        return id_ in self.plugins

    def get(self, id_: str) -> T:
        """Import and return the object registered under `id_`. Raises ConfigError: it is unknown, registered twice, or its package is broken."""
        if id_ not in self.plugins:
            if id_ in self.not_yet:
                raise ConfigError(f"'{id_}' is not available yet; available: {self.choices()}")
            raise ConfigError(
                f"there is no {self.kind} '{id_}'{nearest(id_, self.names()) or '.'} Registered: {self.choices()}. "
                f"A package of yours adds one through the entry-point group '{self.group}'"
            )
        plugin = self.plugins[id_]
        if plugin.problem:
            raise ConfigError(plugin.problem)
        try:
            return load_object(plugin.path)  # type: ignore[return-value]
        except (Exception, SystemExit) as error:  # whatever the module of a user does when it is imported
            if plugin.distribution == "modyn":
                raise
            why = (
                error.message
                if isinstance(error, ModynError)
                else f"cannot import '{plugin.path}': {type(error).__name__}: {error}"
            )
            raise ConfigError(
                f"the {self.kind} '{id_}' of package {plugin.distribution} is broken: {why}; correct the package"
            ) from error


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unnamed package"
