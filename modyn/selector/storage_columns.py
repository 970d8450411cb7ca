"""Compute the strata of a selection from values of a dataset's column in storage, and check that the column exists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Final

import numpy as np

from modyn.config.base import Problem, Severity
from modyn.errors import ConfigError, DataError, NotFoundError
from modyn.records import Int64Array
from modyn.selector.selection import build_selection, validate_selection_section
from modyn.storage.client import StorageClient

ReadColumn = Callable[[str, str, str, Int64Array], Int64Array]
"""Returns the stratum of each key, int64 (n,), by the sample's value in a column. The arguments are the name and identity of the dataset, the name
of the column and the keys, int64 (n,). Raises: ConfigError: the column does not exist. UnavailableError: storage cannot be reached.
"""


def stratum(value: str | None) -> int:
    """Return the stratum of a value: a hash of 64 bits, the same in every process. The probability that any two values of a window share a stratum is
    3 in 10^8 for a window of 2^20 values. For samples without a value, pass None.

    >>> stratum("a"), stratum(None)
    (3405396810240292928, -1)
    """
    if value is None:
        return _NO_VALUE
    return int.from_bytes(blake2b(value.encode(), digest_size=8).digest(), "little", signed=True)


_NO_VALUE: Final = -1
"""Stratum of the samples without a value."""


def no_columns(dataset: str, identity: str, column: str, keys: Int64Array) -> Int64Array:
    """Refuse to read a column: this selector has no storage. Raises ConfigError."""
    raise ConfigError(f"dataset '{dataset}' has no column '{column}' here: the selector was started without storage")


class StorageColumns:
    """Reads the values of a column from storage in chunks."""

    def __init__(self, storage: StorageClient) -> None:
        self._storage = storage

    def __call__(self, dataset: str, identity: str, column: str, keys: Int64Array) -> Int64Array:
        """Return a stratum for each of the keys; see `ReadColumn`."""
        found = [np.zeros(0, np.int64)]
        for part in self._storage.column_values(dataset, keys, column, identity):
            of_values = np.array([*map(stratum, part.values), _NO_VALUE], np.int64)
            # The number -1 stands for a sample without a value. As an index it selects the last element, `_NO_VALUE`.
            found.append(of_values[part.numbers])
        strata = np.concatenate(found)
        # If no sample has a value, the column may not exist in the whole dataset. The files of these samples alone cannot show this.
        if (strata == _NO_VALUE).all():
            self._storage.check_column(dataset, column, identity)
        return strata


def validate_columns(pipeline: Mapping[str, Any], storage: StorageClient) -> list[Problem]:
    """Return the mistakes of a pipeline's `selection_strategy`, including names of columns that the samples of the dataset lack.

    Raises: UnavailableError: the section names a column, and storage cannot be reached.
    """
    found = validate_selection_section(pipeline)
    data = pipeline.get("data")
    dataset = data.get("dataset_id") if isinstance(data, Mapping) else None
    if isinstance(dataset, str) and not any(problem.severity is Severity.ERROR for problem in found):
        for path, column in build_selection(pipeline["selection_strategy"]).columns.items():
            try:
                storage.check_column(dataset, column)
            except (ConfigError, DataError) as error:
                found.append(Problem(f"selection_strategy.{path}", error.message))
            except NotFoundError:
                break  # Another check reports this mistake.
    return found
