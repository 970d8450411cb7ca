"""Columns of categories, stored as distinct values, so that components process few values for all columns together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from modyn.preprocessing.statistics.string_hash import UInt64Array, encode_strings, hash_text
from modyn.records import Int64Array

Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True)
class Categories:
    """A column of categories with m distinct values in the order of first appearance. Every value occurs in the column, except a fill value of an
    Imputer, which is the last.

    codes: indices of the values, int64 (n,), -1 if missing. hashes: stable hashes of the values, uint64 (m,). strings: an array that contains the
    values. places: positions of the values in `strings`, int64 (m,).
    """

    codes: Int64Array
    hashes: UInt64Array
    strings: pa.StringArray
    places: Int64Array

    @classmethod
    def of(cls, strings: pa.StringArray) -> Self:
        """Convert the categories of n rows; null means missing."""
        codes, places, hashes = encode_strings(strings)
        return cls(codes, hashes, strings, places)

    def __len__(self) -> int:
        return len(self.codes)

    def first(self, num_rows: int) -> Categories:
        """Return the first rows."""
        codes = self.codes[:num_rows]
        num_values = int(codes.max(initial=-1)) + 1  # The values of the first rows have the smallest indices.
        return Categories(codes, self.hashes[:num_values], self.strings, self.places[:num_values])

    @cached_property
    def texts(self) -> list[str]:
        """Return the values."""
        return self.texts_at(np.arange(len(self.places)))

    def texts_at(self, numbers: Int64Array) -> list[str]:
        """Return the values with these indices, int64 (k,)."""
        found: list[str] = self.strings.take(pa.array(self.places[numbers])).to_pylist()
        return found

    def filled(self, fill: str) -> Categories:
        """Replace missing values by `fill`."""
        missing = self.codes < 0
        if not missing.any():
            return self
        if fill in self.texts:
            return Categories(np.where(missing, self.texts.index(fill), self.codes), self.hashes, self.strings, self.places)
        strings = pa.array([*self.texts, fill], pa.string())
        codes = np.where(missing, len(self.texts), self.codes)
        return Categories(codes, np.append(self.hashes, hash_text(fill)), strings, np.arange(len(strings)))

    def per_row(self, of_values: npt.NDArray[Any], of_missing: int) -> npt.NDArray[Any]:
        """Expand one number for each value to one number for each row. Args: of_values: (m,). of_missing: number for rows without a value.
        Returns: (n,).
        """
        table = np.empty(len(of_values) + 1, of_values.dtype)
        table[0], table[1:] = of_missing, of_values
        return table[self.codes + 1]

    def counts(self) -> Int64Array:
        """Return the number of rows with each value, int64 (m,)."""
        return np.bincount(self.codes + 1, minlength=len(self.hashes) + 1)[1:]


class JoinedCategories:
    """The m values of k columns with n rows, one column after the other, so that each step is one call for all columns."""

    def __init__(self, columns: Sequence[Categories]) -> None:
        lengths = [len(column.hashes) for column in columns]
        self._columns, self._starts = columns, np.cumsum([0, *lengths])
        self.hashes: UInt64Array = np.concatenate([column.hashes for column in columns])
        """Hashes of the values, uint64 (m,)."""
        self.columns: Int64Array = np.repeat(np.arange(len(columns)), lengths)
        """Index of the column of each value, int64 (m,)."""
        self.codes: Int64Array = np.stack([column.codes for column in columns])
        """Index of the value of each row by column, int64 (k, n); -1 if missing."""
        # The slots of each column start with a slot for missing values.
        self._slots = self.codes + (self._starts[:-1] + np.arange(len(columns)) + 1)[:, None]
        self._slot_of_value = np.arange(len(self.columns)) + self.columns + 1
        self._num_slots = len(self.columns) + len(columns)

    def texts_at(self, values: Int64Array) -> list[str]:
        """Return some of the values, in ascending order of their index, int64 (u,)."""
        bounds = np.searchsorted(values, self._starts).tolist()
        parts = zip(self._columns, self._starts.tolist(), bounds, bounds[1:], strict=False)
        return [text for column, start, first, end in parts if end > first for text in column.texts_at(values[first:end] - start)]

    def counts(self) -> Int64Array:
        """Return the number of rows with each value, int64 (m,)."""
        counts: Int64Array = np.bincount(self._slots.reshape(-1), minlength=self._num_slots)[self._slot_of_value]
        return counts

    def per_row(self, of_values: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """Expand one number for each value to one number for each row; 0 for missing values. Args: of_values: (m,). Returns: (k, n)."""
        table = np.zeros(self._num_slots, of_values.dtype)
        table[self._slot_of_value] = of_values
        found: npt.NDArray[Number] = table[self._slots]
        return found
