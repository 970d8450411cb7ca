"""Converts times in Arrow columns to seconds since 1970."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from modyn._core import TimeFormat
from modyn.records import Int64Array

_DAY_S = 86_400
_BEYOND = "is beyond the years 1 to 9999; correct it"
_UNITS = {unit: TimeFormat(unit) for unit in ("s", "ms", "us", "ns")}


class ReadTimes(NamedTuple):
    """Times of n values: int64 (n,), seconds since 1970. first_bad: position of the first value that is not a time; values from this position on have
    no meaning. -1: all values are times. reason: the problem of the bad value and its remedy, as the predicate of a sentence.
    """

    seconds: Int64Array
    first_bad: int = -1
    reason: str = ""


def holds_times(kind: pa.DataType) -> bool:
    """Whether values of a column can be times. Values of float32 cannot, because around 2024 their resolution is two minutes."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    is_number = pa.types.is_integer(kind) or pa.types.is_float64(kind)
    return bool(is_text or is_number or pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def have_unit(kind: pa.DataType) -> bool:
    """Whether the type of a column contains the unit of its times, so that the times are not ambiguous digits."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def times_of(column: pa.Array, times: TimeFormat) -> ReadTimes:
    """Read the times of a column without nulls, for which `holds_times` is true.

    Args: times: how numbers and texts are written; timestamps and dates have their unit in their type.
    """
    if not pa.types.is_dictionary(column.type):
        return ReadTimes(*_read(column, times))
    # Each distinct value is converted once. Unused values are not converted, because they may be invalid.
    used, places = np.unique(column.indices.to_numpy(), return_inverse=True)
    values = column.dictionary.take(pa.array(used))
    seconds, reasons = np.zeros(len(values), np.int64), dict[int, str]()
    first = 0
    while first < len(values):
        part, first_bad, reason = _read(values.slice(first), times)
        stop = len(values) if first_bad < 0 else first + first_bad
        seconds[first:stop] = part[: stop - first]
        if first_bad >= 0:
            reasons[stop] = reason
        first = stop + 1
    if not reasons:
        return ReadTimes(seconds[places])
    first_bad = int(np.flatnonzero(np.isin(places, list(reasons)))[0])
    return ReadTimes(seconds[places], first_bad, reasons[int(places[first_bad])])


def _read(column: pa.Array, times: TimeFormat) -> tuple[Int64Array, int, str]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        seconds, first_bad, _ = _UNITS[kind.unit].of_integers(column.view(pa.int64()).to_numpy())
        return seconds, first_bad, _BEYOND
    if pa.types.is_date32(kind):
        seconds, first_bad, _ = _UNITS["s"].of_integers(column.view(pa.int32()).to_numpy().astype(np.int64) * _DAY_S)
        return seconds, first_bad, _BEYOND
    if pa.types.is_date64(kind):
        seconds, first_bad, _ = _UNITS["ms"].of_integers(column.view(pa.int64()).to_numpy())
        return seconds, first_bad, _BEYOND
    if pa.types.is_uint64(kind):
        column = pc.min_element_wise(
            column, pa.scalar(2**63 - 1, pa.uint64())
        )  # A larger value is not a time, and would become negative in int64.
    if pa.types.is_integer(kind):
        return times.of_integers(column.cast(pa.int64()).to_numpy())
    if pa.types.is_floating(kind):
        return times.of_floats(column.to_numpy())
    texts = column.cast(pa.large_string())
    bounds = (
        np.frombuffer(texts.buffers()[1], np.int64, len(texts) + 1, 8 * texts.offset) if len(texts) else np.zeros(1, np.int64)
    )
    return times.of_texts(bounds, np.frombuffer(texts.buffers()[2] or b"", np.uint8))
