"""The schema of a dataset of JSON Lines: which fields the objects in the first lines of its files have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import BinaryIO, Final

from modyn.errors import DataError
from modyn.storage.formats.json_fields import parse_object
from modyn.storage.model.schema import MOST_LACKING, DatasetSchema, LackingFile, SchemaColumn, other_columns

FIRST_LINES: Final = 1000
"""Lines at the beginning of each file that are compared; more only while a field that all files have is in none of them."""
_MOST_FIELDS: Final = 1000
"""Most fields of some lines that are noted; of more, none is."""
_NAMED_FIELDS: Final = 50
"""Most fields of a file that are noted where it lacks others."""


def schema_of(names: Sequence[str]) -> DatasetSchema:
    """The schema of files that have these fields."""
    return DatasetSchema("json", tuple(map(SchemaColumn, names)))


def objects_in(file: BinaryIO, max_line_bytes: int) -> Iterator[dict[str, object]]:
    """Yield the objects in the lines of a file; others are bad rows, which are looked for elsewhere."""
    while line := file.readline(max_line_bytes):
        with suppress(ValueError):
            yield parse_object(line)


def decided_schema(objects: Iterator[dict[str, object]]) -> DatasetSchema | None:
    """The schema that a file decides: the fields that each of its first lines has, and those that some have. None: there are no objects."""
    first = list(islice(objects, FIRST_LINES))
    if not first:
        return None
    fields = dict.fromkeys(name for found in first for name in found)
    common = set(fields).intersection(*first)
    some = tuple(name for name in fields if name not in common)
    schema = schema_of([name for name in fields if name in common])
    return schema if len(some) > _MOST_FIELDS else replace(schema, some_lines=some, names_all=True)


def compared_schema(
    path: str, objects: Iterator[dict[str, object]], schema: DatasetSchema, *, has_grown: bool = False
) -> DatasetSchema:
    """The schema of a dataset, with what one file of it lacks.

    Args: path: of the file. objects: in its lines. has_grown: it was compared before, and has all fields that all files have.
    Raises: DataError: no object has one of these.
    """
    missing, seen = set(schema.names if not has_grown else ()), dict[str, None]()
    rare = set(schema.some_lines)
    if len(schema.lacking) > MOST_LACKING:
        rare.difference_update(schema.lacking[-1].lacks)
    for number, found in enumerate(objects, 1):
        seen |= dict.fromkeys(found)
        missing.difference_update(found)
        rare.difference_update(found)
        if not missing and (not rare or number >= FIRST_LINES):
            break
    if missing and seen:
        error = other_columns(path, list(seen), schema)
        raise DataError(
            f"{error.message}; or name the fields that all files have by the option required_fields (`modyn data change`)"
        )
    lacking = (LackingFile("", tuple(sorted(rare)), tuple(islice(seen, _NAMED_FIELDS))),) if rare and seen else ()
    return replace(schema, lacking=lacking)
