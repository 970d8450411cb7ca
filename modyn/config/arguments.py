"""Checks of the arguments of `modyn.Client`. An error names the argument, the given value and the allowed values."""

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
    """Check a list of texts. Raises InvalidArgumentError: the value is not a list of texts, for example a single text. Args: name: name of the
    argument for the error, as in all functions of this module.
    """
    return items(name, values, (str,), "a list of texts")


def items(name: str, values: Iterable[T], kinds: tuple[type, ...], expected: str) -> tuple[T, ...]:
    """Check a list of items of some `kinds`. Raises InvalidArgumentError. Args: expected: description of a valid list, for messages."""
    if isinstance(values, Iterable) and not isinstance(values, str | bytes):
        found = tuple(values)
        if all(isinstance(value, kinds) for value in found):
            return found
    raise InvalidArgumentError(f"{name} is {values!r}; {expected} is expected")


def choice(name: str, value: str, kind: type[E]) -> E:
    """Convert a text to a member of an enumeration. Raises InvalidArgumentError: the text is not a value of the enumeration."""
    try:
        return kind(value)
    except ValueError as error:
        raise InvalidArgumentError(f"{name} {value!r} is not known; allowed are {', '.join(kind)}") from error


def count(name: str, value: int | None) -> int | None:
    """Check a number of items; None: no number is given. Raises InvalidArgumentError: the value is not a whole number of at least 1."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**63):
        return value
    raise InvalidArgumentError(f"{name} is {value!r}; a whole number of at least 1 is expected")


def flag(name: str, value: bool) -> bool:
    """Check a boolean. Raises InvalidArgumentError: the value is neither True nor False."""
    if isinstance(value, bool):
        return value
    raise InvalidArgumentError(f"{name} is {value!r}; True or False is expected")


def timestamp(name: str, value: int | str | dt.datetime | None) -> int | None:
    """Convert a time to seconds since 1970; None: no time is given. Raises InvalidArgumentError: the value is not a time."""
    try:
        return None if value is None else parse_timestamp(value.isoformat() if isinstance(value, dt.datetime) else value)
    except ValueError as error:
        raise InvalidArgumentError(f"{name} is wrong: {error}") from error
