"""Converter of sizes that users write, such as `2GB` and `512MiB`, to bytes."""

from __future__ import annotations

import math
import re
from typing import Annotated, Final

from pydantic import BeforeValidator, Field

UNITS: Final = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")
SIZE_PATTERN: Final = r"^\s*\d+(\.\d+)?\s*([kKmMgGtT][iI]?)?[bB]\s*$"
"""Pattern for editors. `parse_size` decides which texts are valid."""


def parse_size(value: object) -> int:
    """Convert `<number><unit>` to bytes, with a unit of B KB MB GB TB (powers of 1,000) or KiB MiB GiB TiB (powers of 1,024), in any case. An int is
    a number of bytes.

    Raises: ValueError: `value` is another text or type; pydantic converts this error to a problem with the path of the value.

    >>> parse_size("2GB"), parse_size("1.5 KiB")
    (2000000000, 1536)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2].upper() not in UNITS:
        raise ValueError(f"{value!r} is not a size; write a number and one of B KB MB GB TB KiB MiB GiB TiB, for example '2GB'")
    return math.floor(float(match[1]) * UNITS[match[2].upper()])


Size = Annotated[int, BeforeValidator(parse_size, json_schema_input_type=int | Annotated[str, Field(pattern=SIZE_PATTERN)])]
"""Type of a field in bytes, which users write in the form `2GB`."""
