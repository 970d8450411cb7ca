"""Base classes of the preprocessing components. A component updates statistics with columns, and transforms columns by these statistics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator

from modyn.config.base import Section
from modyn.errors import CorruptStateError
from modyn.preprocessing.columns import ColumnKind, Columns, ColumnType

State: TypeAlias = dict[str, Any]
"""Statistics by name: numbers, strings, lists of strings, numpy arrays or nested states, all of which `state_bytes` can encode."""

MOST_COMBINATIONS: Final = 100_000
"""Largest number of features that one component makes by combining columns. Each row has one number for each feature."""

ColumnName = Annotated[str, Field(min_length=1)]


class ComponentConfig(Section):
    """Keys that all components share, in addition to `id`."""

    columns: tuple[ColumnName, ...] | None = Field(
        None,
        min_length=1,
        description="columns that the component reads; by default, all columns of the kinds that it takes, as they are at this point of the "
        "pipeline",
    )

    @field_validator("columns")
    @classmethod
    def _each_once(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value and len(set(value)) < len(value):
            raise ValueError(f"{max(value, key=value.count)!r} occurs twice; name each column once")
        return value


class Component(ABC):
    """A component, built from a config and the columns that the component reads.

    Every component guarantees: the same batches in the same order give the same state, bit for bit. `transform` does not change the state, and
    returns the same bits for a row alone and in any batch. No method changes its input arrays.
    """

    Config: ClassVar[type[ComponentConfig]]
    takes: ClassVar[frozenset[ColumnKind]]
    """Kinds of columns that the component takes. A component whose kinds depend on its config overrides `kinds` instead."""

    def __init__(self, config: Any, inputs: Mapping[str, ColumnType]) -> None:
        """Args: config: an instance of `Config`. inputs: the columns that the component reads, in order, each of a kind that the component takes."""
        self.config = config
        self.inputs = dict(inputs)

    @classmethod
    def kinds(cls, config: Any) -> frozenset[ColumnKind]:
        """Return the kinds of columns that the component takes with this config."""
        return cls.takes

    @classmethod
    def num_combinations(cls, config: Any, num_columns: int) -> int:
        """Return the number of combinations of `num_columns` columns that become features. More than `MOST_COMBINATIONS` are refused."""
        return 0

    @property
    def outputs(self) -> dict[str, ColumnType]:
        """Return the columns that the component outputs; by default, these are the inputs. An output with the name of an input replaces the input."""
        return self.inputs

    @property
    def keeps_inputs(self) -> bool:
        """Return whether inputs without an output of the same name are passed on to later components."""
        return False

    @abstractmethod
    def update(self, columns: Columns) -> None:
        """Add the values of a batch to the statistics. Args: columns: the columns of `inputs`, of equal length, with 0 or more rows."""

    @abstractmethod
    def transform(self, columns: Columns) -> dict[str, Any]:
        """Transform columns by the current statistics. Returns: the columns of `outputs`."""

    def update_and_transform(self, columns: Columns) -> dict[str, Any]:
        """`update`, then `transform`."""
        self.update(columns)
        return self.transform(columns)

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Add the statistics of another component with the same config and inputs, as if the other component's rows had followed this component's
        rows.
        """

    @abstractmethod
    def state(self) -> State:
        """Return all statistics, as values that do not change when the component changes."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace all statistics by a copy of `state`. Raises: CorruptStateError: `state` is not a state of such a component."""

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Return statistics for users: numbers and texts by column and name."""


class StatelessComponent(Component):
    """A component without statistics, whose result depends only on the config."""

    def update(self, columns: Columns) -> None:
        """Keep no statistics."""

    def merge(self, other: Self) -> None:
        """Add no statistics."""

    def state(self) -> State:
        """Return an empty state."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Check that the state is empty. Raises: CorruptStateError: the state is not empty."""
        if state:
            raise CorruptStateError(
                f"a {type(self).__name__} keeps no statistics, but its state has {', '.join(state)}; restore a state of this pipeline"
            )

    def summary(self) -> dict[str, Any]:
        """Return an empty summary."""
        return {}


def take(state: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    """Return the value `name` of a state. Raises: CorruptStateError: the value is missing or not of type `kind`."""
    found = state.get(name)
    if not isinstance(found, kind) or isinstance(found, bool):
        raise CorruptStateError(f"the state of preprocessing has no valid '{name}'; restore a state that this pipeline wrote")
    return found


def take_array(state: Mapping[str, Any], name: str, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy of the array `name` of a state. Raises: CorruptStateError: the array is missing, or has another dtype or shape than `like`."""
    found: npt.NDArray[Any] = take(state, name, np.ndarray)
    if found.dtype != like.dtype or found.shape != like.shape:
        raise CorruptStateError(
            f"'{name}' in the state of preprocessing is {found.dtype} {found.shape}, not {like.dtype} {like.shape}; restore a state of this pipeline"
        )
    return found.copy()
