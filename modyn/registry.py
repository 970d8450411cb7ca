"""Registry of policies by id.

Built-in policies are listed by their import paths, so that each policy is imported only when it is used. A user's package adds policies through entry
points of the registry's group (for example `modyn.triggers`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final, Generic, TypeVar

from modyn.errors import ConfigError, ModynError

T = TypeVar("T")

_MAX_COMPARED: Final = 1000
_MAX_LENGTH: Final = 100
"""Largest number of names, and of characters of a name, that `nearest` compares. Both may come from a client."""


def nearest(name: str, names: list[str]) -> str:
    """Return `, did you mean 'X'?` with the most similar of `names`; empty: no name is similar.

    A very similar name is preferred, then a name that contains `name` or is contained in `name`, then a less similar name. Texts of more than
    `_MAX_LENGTH` characters are similar to nothing.
    """
    if len(name) > _MAX_LENGTH:
        return ""

    def nearness(other: str) -> tuple[int, float]:
        short, long = sorted((name.lower(), other.lower()), key=len)
        ratio = difflib.SequenceMatcher(None, short, long).ratio()
        if ratio >= 0.85:
            return 3, ratio
        if len(short) >= 3 and short in long:
            return 2, ratio
        return int(ratio >= 0.5), ratio

    best = max((other for other in names[:_MAX_COMPARED] if len(other) <= _MAX_LENGTH), key=nearness, default=None)
    return f", did you mean '{best}'?" if best is not None and nearness(best)[0] else ""


def load_object(path: str) -> object:
    """Import the object `package.module:name` (or `package.module.name`). Raises ConfigError if it does not exist."""
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
    """Known reason why the plug-in cannot be used; empty if there is no problem."""


@dataclass
class Registry(Generic[T]):
    """Objects of one kind by id. A broken plug-in affects only users who name it. builtin: import paths (`package.module:Name`) by id."""

    group: str
    kind: str
    """Name of one object in messages, e.g. `trigger`."""
    builtin: Mapping[str, str] = field(default_factory=dict)
    not_yet: Sequence[str] = ()
    """Ids of the pipeline format that have no built-in object yet. A package may provide their objects."""
    has_options: bool = True
    """Whether each object has a class `Config` for its options."""

    @cached_property
    def plugins(self) -> dict[str, Plugin]:
        """Return all plug-ins by id, including plug-ins of installed packages. If two packages register an id, the plug-in has a `problem`."""
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
        """Return all plug-ins. A plug-in of a package with the name of a built-in plug-in is included, with a `problem`."""
        taken = [
            replace(
                plugin,
                problem=f"{self.kind} '{plugin.id}' of package {plugin.distribution} ({plugin.path}) has the name of a built-in "
                "one, which is used: rename it or uninstall the package",
            )
            for plugin in self._installed()
            if plugin.id in self.builtin
        ]
        return sorted([*self.plugins.values(), *taken], key=lambda plugin: plugin.id)

    def _installed(self) -> list[Plugin]:
        return [Plugin(self.group, entry.name, entry.value, _distribution(entry)) for entry in entry_points(group=self.group)]

    def problem(self, id_: str) -> str:
        """Import the object of an id, and return why the object cannot be used; empty if the object can be used."""
        try:
            found = self.get(id_)
        except ConfigError as error:
            return error.message
        # A registry may accept names that are not registered: the registry of metrics also accepts names of torchmetrics.
        plugin, config = self.plugins.get(id_), getattr(found, "Config", None)
        if plugin is None or not self.has_options or (isinstance(config, type) and hasattr(config, "model_fields")):
            return ""
        return (
            f"the {self.kind} {plugin.path} has no class `Config` of its options (a modyn.config.base.Section): correct the package "
            f"{plugin.distribution}, which registers it"
        )

    def preload(self) -> str:
        """Import all built-in objects and scan the installed packages, so that forks of this process need not do so.

        Returns: the known problems of installed packages; empty: no problems. A process that needs a package with a problem raises an error with this
        problem.
        """
        for path in self.builtin.values():
            load_object(path)
        return "; ".join(plugin.problem for plugin in self.listed() if plugin.problem)

    def ids(self) -> list[str]:
        """Return all ids, sorted."""
        return sorted(self.plugins)

    def names(self) -> list[str]:
        """Return all names that `get` accepts. There may be more names than ids."""
        return self.ids()

    def choices(self) -> str:
        """Return the ids as a text for messages."""
        return ", ".join(self.ids())

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids())

    def __contains__(self, id_: object) -> bool:
        return id_ in self.plugins

    def get(self, id_: str) -> T:
        """Import and return the object of an id. Raises ConfigError: the id is unknown or registered twice, or its package is broken."""
        if id_ not in self.plugins:
            if id_ in self.not_yet:
                raise ConfigError(f"'{id_}' is not available yet; available: {self.choices()}")
            raise ConfigError(
                f"there is no {self.kind} '{id_}'{nearest(id_, self.names()) or '.'} Registered: {self.choices()}. "
                f"Your own package can add one through the entry-point group '{self.group}'"
            )
        plugin = self.plugins[id_]
        if plugin.problem:
            raise ConfigError(plugin.problem)
        try:
            return load_object(plugin.path)  # type: ignore[return-value]
        except BaseException as error:  # a user's module may raise any error on import, also SystemExit or a panic of Rust
            if plugin.distribution == "modyn" or isinstance(error, KeyboardInterrupt):
                raise
            why = (
                error.message
                if isinstance(error, ModynError)
                else f"cannot import '{plugin.path}': {type(error).__name__}: {error}"
            )
            raise ConfigError(self.broken(id_, why)) from error

    def broken(self, id_: str, why: str) -> str:
        """Return the message that the plug-in `id_` of an installed package is broken."""
        return f"the {self.kind} '{id_}' of package {self.plugins[id_].distribution} is broken: {why}; correct the package"


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unnamed package"
