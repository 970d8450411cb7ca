"""Checks of the arguments of `modyn.Client`: an error names the argument, its value and what is allowed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from enum import StrEnum
from typing import TypeVar

from modyn.config.durations import parse_timestamp
from modyn.errors import InvalidArgumentError

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)


def texts(name: str, values: Iterable[str]) -> tuple[str, ...]:
    """Return a list of texts. Raises InvalidArgumentError: it is none, e.g. one text. Args: name: of the argument, here and below."""
    return items(name, values, (str,), "a list of texts")


def items(name: str, values: Iterable[T], kinds: tuple[type, ...], expected: str) -> tuple[T, ...]:
    """Return a list whose items are of some `kinds`. Raises InvalidArgumentError: it is none. Args: expected: what is, in words."""
    if isinstance(values, Iterable) and not isinstance(values, str | bytes):
        found = tuple(values)
        if all(isinstance(value, kinds) for value in found):
            return found
    raise InvalidArgumentError(f"{name} is {values!r}; {expected} is expected")


def choice(name: str, value: str, kind: type[E]) -> E:
    """Return one of the values of an enumeration. Raises InvalidArgumentError: it is none of them."""
    try:
        return kind(value)
    except ValueError as error:
        raise InvalidArgumentError(f"{name} {value!r} is not known; allowed are {', '.join(kind)}") from error


def count(name: str, value: int | None) -> int | None:
    """Return how many of something are asked for; None: it is left open. Raises InvalidArgumentError: no whole number, or none at all."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**63):
        return value
    raise InvalidArgumentError(f"{name} is {value!r}; a whole number is expected, from 1 on")


def flag(name: str, value: bool) -> bool:
    """Return True or False. Raises InvalidArgumentError: it is neither."""
    if isinstance(value, bool):
        return value
    raise InvalidArgumentError(f"{name} is {value!r}; True or False is expected")


def timestamp(name: str, value: int | str | dt.datetime | None) -> int | None:
    """Return seconds since 1970; None: it is left open. Raises InvalidArgumentError: it is no time."""
    try:
        return None if value is None else parse_timestamp(value.isoformat() if isinstance(value, dt.datetime) else value)
    except ValueError as error:
        raise InvalidArgumentError(f"{name} is wrong: {error}") from error
