"""The schema of a JSON Lines dataset: the fields of the objects in the first lines of its files."""

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
"""Number of first lines of each file that are compared. Later lines are read only while a field that all files have was in no line of the file."""
_MOST_FIELDS: Final = 1000
"""Largest number of recorded fields that only some lines have. If a file has more such fields, none is recorded."""
_NAMED_FIELDS: Final = 50
"""Largest number of fields that are recorded for a file that lacks some of the schema's fields."""


def schema_of(names: Sequence[str]) -> DatasetSchema:
    """Return the schema of files with the fields `names`."""
    return DatasetSchema("json", tuple(map(SchemaColumn, names)))


def objects_in(file: BinaryIO, max_line_bytes: int) -> Iterator[dict[str, object]]:
    """Yield the objects in the lines of a file. Other lines are bad rows, which `index` reports."""
    while line := file.readline(max_line_bytes):
        with suppress(ValueError):
            yield parse_object(line)


def decided_schema(objects: Iterator[dict[str, object]]) -> DatasetSchema | None:
    """Return the schema that a file decides: the fields that all of its first lines have, and the fields that only some have. None: the file has no
    objects.
    """
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
    """Return the schema of a dataset, updated by the missing fields of a file.

    Args: path: path of the file. objects: objects in its lines. has_grown: whether the file was compared before, so it has all required fields.
    Raises: DataError: no object of the file has a field that the schema requires in every file.
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
    if rare and seen:
        return replace(schema, lacking=(LackingFile("", tuple(sorted(rare)), tuple(islice(seen, _NAMED_FIELDS))),))
    return replace(schema, lacking=()) if schema.lacking else schema
