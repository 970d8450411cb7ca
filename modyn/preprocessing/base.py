"""What a component of preprocessing is: it updates its statistics with columns and transforms columns by them."""

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
"""Names to numbers, strings, lists of strings, numpy arrays, or a State; what `state_bytes` can encode."""

MOST_COMBINATIONS: Final = 100_000
"""Of columns, by one component: a row has a number for each."""

ColumnName = Annotated[str, Field(min_length=1)]


class ComponentConfig(Section):
    """Keys that all components share, beside `id`."""

    columns: tuple[ColumnName, ...] | None = Field(
        None,
        min_length=1,
        description="columns that it reads; without it, all columns of the kinds that it takes, as they are at its place",
    )

    @field_validator("columns")
    @classmethod
    def _each_once(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value and len(set(value)) < len(value):
            raise ValueError(f"{max(value, key=value.count)!r} stands twice; name each column once")
        return value


class Component(ABC):
    """A component, made of its config and the columns that it reads.

    What all of them keep: the same batches in the same order give the same state, bit by bit; `transform` changes no state, and gives a row the same
    bits alone and in any batch; neither changes the arrays that it is given.
    """

    Config: ClassVar[type[ComponentConfig]]

    def __init__(self, config: Any, inputs: Mapping[str, ColumnType]) -> None:
        """Args: config: an instance of `Config`. inputs: the columns that it reads, in order, of kinds that it takes."""
        self.config = config
        self.inputs = dict(inputs)

    @classmethod
    @abstractmethod
    def kinds(cls, config: Any) -> frozenset[ColumnKind]:
        """Kinds of columns that it takes with this config."""

    @classmethod
    def num_combinations(cls, config: Any, num_columns: int) -> int:
        """How many combinations of so many columns it makes features of; it is refused where there are more than `MOST_COMBINATIONS`."""
        return 0

    @property
    @abstractmethod
    def outputs(self) -> dict[str, ColumnType]:
        """Columns that it gives. One with the name of an input takes the input's place."""

    @property
    def keeps_inputs(self) -> bool:
        """Whether inputs without an output of the same name stay for the components after it."""
        return False

    @abstractmethod
    def update(self, columns: Columns) -> None:
        """Take the values of a batch into the statistics. Args: columns: those of `inputs`, of equal length, 0 or more rows."""

    @abstractmethod
    def transform(self, columns: Columns) -> dict[str, Any]:
        """Transform columns by the statistics as they are. Returns: the columns of `outputs`."""

    def update_and_transform(self, columns: Columns) -> dict[str, Any]:
        """`update`, then `transform`."""
        self.update(columns)
        return self.transform(columns)

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Add the statistics of another component with the same config and inputs, as if its rows had come after those of this one."""

    @abstractmethod
    def state(self) -> State:
        """All statistics, as values that do not change when the component does."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace all statistics by a copy of those of `state`. Raises: CorruptStateError: it is not of such a component."""

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Statistics for users: by name of a column, numbers and texts by name."""


class StatelessComponent(Component):
    """A component without statistics, which only its config decides."""

    def update(self, columns: Columns) -> None:
        """Keep nothing."""

    def merge(self, other: Self) -> None:
        """Add nothing."""

    def state(self) -> State:
        """Nothing."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take nothing. Raises: CorruptStateError: there is something."""
        if state:
            raise CorruptStateError(
                f"a {type(self).__name__} keeps no statistics, but its state has {', '.join(state)}; restore a state of this pipeline"
            )

    def summary(self) -> dict[str, Any]:
        """Nothing."""
        return {}


def take(state: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    """The value `name` of a state. Raises: CorruptStateError: it is missing or not of `kind`."""
    found = state.get(name)
    if not isinstance(found, kind) or isinstance(found, bool):
        raise CorruptStateError(f"the state of preprocessing has no valid '{name}'; restore a state that this pipeline wrote")
    return found


def take_array(state: Mapping[str, Any], name: str, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy of the array `name` of a state. Raises: CorruptStateError: it is missing, or has another dtype or shape than `like`."""
    found: npt.NDArray[Any] = take(state, name, np.ndarray)
    if found.dtype != like.dtype or found.shape != like.shape:
        raise CorruptStateError(
            f"'{name}' in the state of preprocessing is {found.dtype} {found.shape}, not {like.dtype} {like.shape}; restore a state of this pipeline"
        )
    return found.copy()
