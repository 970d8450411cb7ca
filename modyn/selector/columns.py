"""What a dataset's samples have in a column of their files, as storage says: as strata of a selection, and whether there is such a column."""

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
"""Returns a stratum for each of some keys, int64 (n,), by their values in a column: called with the name and identity of the dataset, the name
of the column and the keys, int64 (n,). Raises: ConfigError: there is no such column. UnavailableError: that cannot be said now."""


def stratum(value: str | None) -> int:
    """Return the stratum of a value: 64 bits of a hash, the same in every process, so that two values of a window share one by no more than
    chance (3 in 10^8 for a window of 2^20 values). None: that of samples without a value.

    >>> stratum("a"), stratum(None)
    (3405396810240292928, -1)
    """
    if value is None:
        return _NO_VALUE
    return int.from_bytes(blake2b(value.encode(), digest_size=8).digest(), "little", signed=True)


_NO_VALUE: Final = -1


def no_columns(dataset: str, identity: str, column: str, keys: Int64Array) -> Int64Array:
    """The `ReadColumn` of a selector beside no storage. Raises ConfigError."""
    raise ConfigError(f"dataset '{dataset}' has no column '{column}' here: the selector was started without storage")


class StorageColumns:
    """Asks storage for the values of a column, a few at once."""

    def __init__(self, storage: StorageClient) -> None:
        self._storage = storage

    def __call__(self, dataset: str, identity: str, column: str, keys: Int64Array) -> Int64Array:
        """Return a stratum for each of the keys, as `ReadColumn`."""
        found = [np.zeros(0, np.int64)]
        for part in self._storage.column_values(dataset, keys, column, identity):
            of_values = np.array([*map(stratum, part.values), _NO_VALUE], np.int64)
            found.append(of_values[part.numbers])
        strata = np.concatenate(found)
        # If there are none, perhaps because there is no such column, which a single file does not show.
        if (strata == _NO_VALUE).all():
            self._storage.check_column(dataset, column, identity)
        return strata


def validate_columns(pipeline: Mapping[str, Any], storage: StorageClient) -> list[Problem]:
    """Return the mistakes of a pipeline's `selection_strategy`, also where it names a column that the samples of the dataset lack.

    Raises: UnavailableError: storage cannot be reached, and a column is named.
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
                break  # The check of what the pipeline names says so.
    return found
