"""Column types of Parquet files: their names in a schema, and the conversions that change no value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Final

import numpy as np
import pyarrow as pa

from modyn.errors import DataError
from modyn.storage.model.schema import DatasetSchema, SchemaColumn

_NAMES: Final = {pa.float16(): "float16", pa.float32(): "float32", pa.float64(): "float64"}
_MANTISSA_BITS: Final = {16: 11, 32: 24, 64: 53}
"""Width of a float type in bits → largest n such that the type represents all whole numbers of n bits exactly."""


def is_bytes(kind: pa.DataType) -> bool:
    """Whether values of a column are bytes or text."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_fixed_size_binary(kind) or is_text(kind)


def is_number(kind: pa.DataType) -> bool:
    """Whether values of a column are integers or fractions."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether each value of a column has its own length, so that the column may be read as a dictionary."""
    return kind in (pa.binary(), pa.large_binary(), pa.string(), pa.large_string())


def type_name(kind: pa.DataType) -> str:
    """Return the name of a type in a schema. All forms in which a file may store the same values have one name.

    >>> [type_name(kind) for kind in (pa.float64(), pa.dictionary(pa.int32(), pa.large_string()), pa.large_binary(), pa.binary(4))]
    ['float64', 'string', 'binary', 'fixed_size_binary[4]']
    """
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return _NAMES.get(kind) or str(kind).removeprefix("large_")


@cache
def type_of(name: str) -> pa.DataType:
    """Return the Arrow type with this name. Raises: ValueError: no type has this name, or payloads cannot have this type."""
    sized = re.fullmatch(r"fixed_size_binary\[(\d+)\]", name)
    kind = pa.binary(int(sized[1])) if sized else pa.type_for_alias(name)
    if not is_number(kind) and not is_bytes(kind):
        raise ValueError(f"{name} is not a type of numbers, bytes or texts")
    return kind


def is_widening(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of the type `found` may be read as the type `wanted` without a change of values. Whole numbers that are read as fractions are
    checked later, see `TypedColumns`."""
    if is_bytes(found) and is_bytes(wanted):
        # A payload has the same bytes under any type of bytes or text. If `wanted` has a fixed size, both types must have the same size.
        return not pa.types.is_fixed_size_binary(wanted) or type_name(found) == type_name(wanted)
    if pa.types.is_floating(found) and pa.types.is_floating(wanted):
        return bool(found.bit_width <= wanted.bit_width)
    if pa.types.is_integer(found) and pa.types.is_floating(wanted):
        # A 16-bit float represents whole numbers exactly only up to 2^11, so only 8-bit integers may be read as 16-bit floats.
        return bool(wanted.bit_width > 16 or found.bit_width == 8)
    if pa.types.is_integer(found) and pa.types.is_integer(wanted):
        return _value_bits(found) <= _value_bits(wanted) and (
            pa.types.is_signed_integer(wanted) or pa.types.is_unsigned_integer(found)
        )
    return False


def check_types(path: str, schema: pa.Schema, columns: Sequence[str], types: Sequence[str], decider: str = "") -> None:
    """Check that columns of a file can be read as `types`. Raises: DataError: a column cannot be read as its type; the message names the file, the
    column and both types.

    Args: decider: `DatasetSchema.decider`, for the message.
    """
    for name, wanted in zip(columns, types, strict=False):  # There are no types if no schema is known.
        kind = schema.field(name).type
        if not is_widening(kind, type_of(wanted)):
            decided = f", {decider}" if decider else ""
            raise DataError(
                f"{path}: column '{name}' is of type {type_name(kind)}, and in its dataset of type {wanted}{decided}: it cannot be read as that "
                "without a change of values. Write the file with the type of the dataset, or register all files as a dataset with the wider type, "
                "by the option payload_types"
            )


class TypedColumns:
    """The conversion of the payload columns of files with one schema to the types of their dataset."""

    def __init__(self, path: str, found: pa.Schema, schema: DatasetSchema) -> None:
        """Args: path: path of the file, for errors. found: columns of the file. schema: schema of the dataset. Raises: as `check_types`."""
        check_types(path, found, schema.names, [column.type for column in schema.columns], schema.decider)
        pairs = {column.name: (found.field(column.name).type, type_of(column.type)) for column in schema.columns}
        numbers = {name: pair for name, pair in pairs.items() if is_number(pair[0])}
        casts = tuple(SchemaColumn(name, type_name(kind)) for name, (kind, wanted) in numbers.items() if kind != wanted)
        self.schema = schema.joined(replace(schema, casts=casts))
        """The schema of the dataset, plus the casts that these files need."""
        self.texts = [name for name, (kind, _) in pairs.items() if is_text(kind)]
        """Columns that may be read as dictionaries."""
        self._fractions = {name: wanted for name, (kind, wanted) in numbers.items() if _may_be_inexact(kind, wanted)}
        self.inexact = list(self._fractions)
        """Columns of whole numbers in which each value is checked, because the wanted fraction type may not represent a value exactly."""
        first = next(iter(pairs.values()))[0]
        self.num_bytes: int | None = None
        """Size of every payload in bytes; None if the types of the columns do not fix the size."""
        if pa.types.is_fixed_size_binary(first):
            self.num_bytes = int(first.byte_width)
        elif len(numbers) == len(pairs):
            self.num_bytes = sum(int(wanted.bit_width) // 8 for _, wanted in numbers.values())

    def refuse_inexact(self, path: str, first: int, rows: pa.RecordBatch) -> None:
        """Check that the wanted fraction types represent all whole numbers of `rows` exactly.

        Args: path: path of the file, for errors. first: number of the first row.
        Raises: DataError: a number has no exact value; the message names the first such number.
        """
        for name, wanted in self._fractions.items():
            most, numbers = 1 << _MANTISSA_BITS[wanted.bit_width], rows.column(name).to_numpy()
            beyond = (numbers > most) | (numbers < -most) if numbers.dtype.kind == "i" else numbers > most
            for at in np.flatnonzero(beyond)[:1].tolist():
                raise DataError(
                    f"{path}, row {first + at}: {numbers[at]} in column '{name}', of type {numbers.dtype}, has no exact value as "
                    f"{type_name(wanted)}, the type of the column in its dataset; correct the row, or register the files as a dataset with another "
                    "type (payload_types)"
                )


def _may_be_inexact(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether `found` is an integer type and `wanted` a fraction type that does not represent all its values exactly."""
    fractions = pa.types.is_integer(found) and pa.types.is_floating(wanted)
    return bool(fractions and _value_bits(found) > _MANTISSA_BITS[wanted.bit_width])


def _value_bits(kind: pa.DataType) -> int:
    """Return the number of bits of the largest value of an integer type."""
    return int(kind.bit_width) - bool(pa.types.is_signed_integer(kind))
