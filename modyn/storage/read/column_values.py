"""Values of a column as text. Each distinct value is stored once, and equal values have equal text in all formats and files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np

from modyn.errors import ConfigError
from modyn.json_codec import MAX_EXACT_INT, sanitize
from modyn.records import Int64Array

if TYPE_CHECKING:
    import pyarrow as pa

MOST_VALUE_BYTES = 1024
"""Largest text of a value in bytes. Longer values are refused."""


def value_text(value: object) -> str | None:
    """Return the text of a value: a number without needless zeros, a time in ISO 8601; None for None.

    Raises: ValueError: the object is not a single value, or its text is longer than MOST_VALUE_BYTES; the message describes the object.

    >>> [value_text(value) for value in ("a", True, 1, 1.0, -0.0, 0.5, float("nan"), Decimal("1.50"), b"a", None)]
    ['a', 'true', '1', '1', '0', '0.5', 'nan', '1.5', 'a', None]
    """
    match value:
        case None:
            return None
        case str():
            text = sanitize(value)
        case bool():
            text = str(value).lower()
        case int():
            text = str(value)
        case float():
            text = str(int(value)) if value.is_integer() and abs(value) <= MAX_EXACT_INT else repr(value)
        case Decimal():
            text = f"{value.normalize():f}"
        case dt.date() | dt.time():
            text = value.isoformat()
        case bytes():
            text = sanitize(value.decode("utf-8", "backslashreplace"))
        case _:
            raise ValueError(f"{_KINDS.get(type(value), f'values of type {type(value).__name__}')}, not a single value")
    if len(text) > MOST_VALUE_BYTES // 4 and (size := len(text.encode())) > MOST_VALUE_BYTES:
        raise ValueError(f"a text of {size:,} bytes, and a value has at most {MOST_VALUE_BYTES:,}")
    return text


_KINDS: dict[type, str] = {dict: "objects", list: "lists"}


class ValueEncoder:
    """Assigns numbers to the distinct values of a column, in the order of first occurrence."""

    def __init__(self, column: str) -> None:
        """Args: column: name of the column, for errors."""
        self._column = column
        self._numbers: dict[str, int] = {}

    @property
    def values(self) -> list[str]:
        """The distinct values, by number."""
        return list(self._numbers)

    def numbers(self, values: Iterable[object]) -> Int64Array:
        """Return the number of each value, int64 (n,), -1 for None. Raises: ConfigError: a value has no text."""
        return np.fromiter(map(self._number, values), np.int64)

    def numbers_of_array(self, values: pa.Array) -> Int64Array:
        """Return the number of each value of an Arrow array, like `numbers`."""
        import pyarrow as pa  # Imported here, because the import is slow, and only row groups need pyarrow.
        import pyarrow.compute as pc

        encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
        distinct = encoded.dictionary
        if pa.types.is_timestamp(distinct.type):
            # Times are converted here, because Python's times have no nanoseconds. Without trailing zeros, equal times of all units have equal text.
            distinct = pc.replace_substring_regex(distinct.cast(pa.string()), r"(\.\d*?)0+(Z?)$", r"\1\2")
            distinct = pc.replace_substring_regex(distinct, r"\.(Z?)$", r"\1")
        # The dictionary may contain values that no row uses.
        used, places = np.unique(encoded.indices.fill_null(-1).to_numpy(), return_inverse=True)
        numbers = [-1 if index < 0 else self._number(distinct[index].as_py()) for index in used.tolist()]
        found: Int64Array = np.array(numbers, np.int64)[places]
        return found

    def _number(self, value: object) -> int:
        if type(value) is str and (number := self._numbers.get(value)) is not None:
            return number
        try:
            text = value_text(value)
        except ValueError as error:
            raise ConfigError(f"the column '{self._column}' holds {error}; choose a column of categories") from error
        return -1 if text is None else self._numbers.setdefault(text, len(self._numbers))
