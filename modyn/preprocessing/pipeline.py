"""Preprocessing: a sequence of components, built from the section `preprocessing` of a pipeline file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any, Final, Self

import numpy as np
from pydantic import Field

from modyn.config.base import Problem, check_section, load_section, refuse
from modyn.config.policy import check_policy, load_policy
from modyn.errors import ConflictError, CorruptStateError, DataError
from modyn.preprocessing.base import MOST_COMBINATIONS, Component, State, take
from modyn.preprocessing.column_parser import ColumnParser, ColumnSchema
from modyn.preprocessing.columns import Column, ColumnKind, Columns, ColumnType, Int64Array, RawColumns, ReadColumns
from modyn.preprocessing.components import COMPONENTS
from modyn.preprocessing.components.input_guard import InputCounts, InputGuard, input_shares, unusual_inputs
from modyn.preprocessing.feature_matrix import FeatureRange, Features, assemble, feature_ranges
from modyn.preprocessing.statistics.state_bytes import decode_state, encode_state
from modyn.registry import nearest

_NO_FEATURES: Final = {
    ColumnKind.CATEGORY: "a OneHotEncoder, a HashedEncoder, a LabelIndexer or a FeatureHasher",
    ColumnKind.TEXT: "TokenCounts",
}


class PreprocessingConfig(ColumnSchema):
    """The section `preprocessing`: the columns of a sample, and the components that process them in order."""

    components: tuple[dict[str, Any], ...] = Field(
        (),
        description="components in order, each with its `id`, the `columns` that it reads, and its options; other columns pass through",
    )


class Preprocessing:
    """Collects the statistics of a stream, and uses the statistics to make features from samples.

    Each component updates its statistics with the output of the previous component, and then transforms that output, like scikit-learn's partial_fit
    and transform.

    **Deterministic.** The same batches in the same order give the same state and features, bit for bit. `transform` changes no statistics and returns
    the same bits for a row alone or in a batch, so that serving computes the same features as training. **Bounded.** Memory and the number of
    features depend only on the section, not on the stream. **Merged.** Statistics of two parts of a stream merge as if one part had followed the
    other part. For a component after another component with statistics, the merge is not exact, because each part was transformed by its own
    statistics.
    """

    def __init__(self, section: Mapping[str, Any], path: str = "preprocessing") -> None:
        """Args: section: the section as in the pipeline file. path: path of the section in the file. Raises: ConfigError: lists every mistake of
        the first wrong component.
        """
        self.config = load_section(PreprocessingConfig, section, path)
        self.num_rows = 0
        """Number of rows of all updates."""
        self.kinds = self.config.kinds
        """Kinds of the declared columns by name."""
        types = {name: ColumnType(kind) for name, kind in self.kinds.items()}
        self._components: list[Component] = []
        for at, options in enumerate(self.config.components):
            self._components.append(_built(options, types, f"{path}.components.{at}"))
            types = _after(types, self._components[-1])
        refuse(_without_features(types, path))
        self.ranges: tuple[FeatureRange, ...] = feature_ranges(types)
        """Ranges of the features of each column."""

    @cached_property
    def parser(self) -> ColumnParser:
        """Return the parser that converts payloads into columns. Raises: ConfigError: the section has no `format`."""
        return ColumnParser(self.config)

    @property
    def num_features(self) -> int:
        """Return the number of dense and sparse features, which the section determines."""
        return self.num_dense + self.num_sparse

    @property
    def num_dense(self) -> int:
        """Return the width of `Features.dense`."""
        return sum(found.width for found in self.ranges if not found.sparse)

    @property
    def num_sparse(self) -> int:
        """Return the number of sparse features. `Features.indices` are below this number."""
        return sum(found.width for found in self.ranges if found.sparse)

    def read(self, raw: RawColumns) -> ReadColumns:
        """Convert the columns of a batch, for several calls of objects with the same section. Raises: DataError: the columns do not match the
        section."""
        return ReadColumns.of(raw, self.kinds)

    def _columns(self, given: RawColumns | ReadColumns) -> Columns:
        return (given if isinstance(given, ReadColumns) else self.read(given)).columns

    def _assembled(self, columns: Columns, num_rows: int, given: RawColumns | ReadColumns) -> Features:
        return assemble(columns, self.ranges, num_rows, given.source if isinstance(given, ReadColumns) else given)

    def update(self, raw: RawColumns | ReadColumns) -> None:
        """Add a batch to all statistics. The state afterwards equals the state after `update_and_transform`. Raises: DataError: a column is wrong; no
        statistics were changed.
        """
        columns = self._columns(raw)
        self.num_rows += _num_rows(columns)
        for component in self._components[:-1]:
            columns = _passed(component, columns, component.update_and_transform(_inputs(component, columns)))
        if self._components:
            self._components[-1].update(_inputs(self._components[-1], columns))

    def transform(self, raw: RawColumns | ReadColumns) -> Features:
        """Compute the features of n rows with the current statistics, without changing them. Raises: DataError."""
        return self._transformed(raw, lambda *_: None)

    def transform_and_look(self, raw: RawColumns | ReadColumns) -> tuple[Features, dict[str, InputCounts]]:
        """Transform like `transform`, and count for each column the values that InputGuards find unlike earlier values. If several guards read a
        column, the first guard counts. Raises: DataError."""
        found = dict[str, InputCounts]()

        def look(component: Component, columns: Columns) -> None:
            if isinstance(component, InputGuard):
                found.update({name: counts for name, counts in component.look(columns).items() if name not in found})

        return self._transformed(raw, look), found

    def _transformed(self, raw: RawColumns | ReadColumns, look: Callable[[Component, Columns], None]) -> Features:
        """Transform a batch. Args: look: is called with each component and its inputs."""
        columns = self._columns(raw)
        num_rows = _num_rows(columns)
        for component in self._components:
            inputs = _inputs(component, columns)
            look(component, inputs)
            columns = _passed(component, columns, component.transform(inputs))
        return self._assembled(columns, num_rows, raw)

    def update_and_transform(self, raw: RawColumns | ReadColumns) -> Features:
        """Update the statistics of each component, and transform the input of the next component with these statistics.

        Raises: DataError: the columns do not match the section; then no statistics were changed. Or a feature is missing or too large; then the
        statistics include the batch.
        """
        columns = self._columns(raw)
        num_rows = _num_rows(columns)
        self.num_rows += num_rows
        for component in self._components:
            columns = _passed(component, columns, component.update_and_transform(_inputs(component, columns)))
        return self._assembled(columns, num_rows, raw)

    def merge(self, other: Self) -> None:
        """Add the statistics of another part of the stream. Raises: ConflictError: `other` was built from another section."""
        if other.config != self.config:
            raise ConflictError(
                "statistics of different preprocessing sections cannot be merged; use the same columns and components for both"
            )
        for component, another in zip(self._components, other._components, strict=True):
            component.merge(another)
        self.num_rows += other.num_rows

    def state(self) -> State:
        """Return all statistics, by index and name of the component."""
        return {"num_rows": self.num_rows, **{name: component.state() for name, component in self._named().items()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace all statistics. Raises: CorruptStateError: the state belongs to other components; statistics may be partly replaced."""
        expected = ["num_rows", *self._named()]
        if sorted(state) != sorted(expected):
            raise CorruptStateError(
                f"the state of preprocessing has {', '.join(state)}, not {', '.join(expected)}; restore a state of this pipeline"
            )
        for name, component in self._named().items():
            component.load_state(take(state, name, dict))
        self.num_rows = take(state, "num_rows", int)

    def to_bytes(self) -> bytes:
        """Return section and statistics, with a version and a checksum; equal for equal statistics."""
        return self.snapshot().to_bytes()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Build an object from the output of `to_bytes`. Raises: CorruptStateError: the bytes are damaged or of another version. ConfigError: a
        component is not installed here.
        """
        return cls.from_snapshot(StatisticsSnapshot.from_bytes(content))

    def snapshot(self) -> StatisticsSnapshot:
        """Copy the current statistics. With large vocabularies this takes a fraction of the time of `to_bytes` and `from_snapshot`."""
        return StatisticsSnapshot(self.config, self.state())

    @classmethod
    def from_snapshot(cls, snapshot: StatisticsSnapshot) -> Self:
        """Build an object with the statistics of a snapshot. Raises: see `from_bytes`."""
        found = cls(snapshot.config.model_dump())
        found.load_state(snapshot.state)
        return found

    def summary(self) -> dict[str, Any]:
        """Summarise for users, as JSON values: rows, features, and for each component and column means, sizes of vocabularies, shares over the
        bound."""
        components = {name: found for name, component in self._named().items() if (found := component.summary())}
        return {
            "rows": self.num_rows,
            "dense_features": self.num_dense,
            "sparse_features": self.num_sparse,
            "components": components,
        }

    def over_bound(self) -> dict[str, dict[str, float]]:
        """Return, by component and column, the share of values that did not fit into a full vocabulary. Columns without such values are omitted."""
        return {
            name: shares
            for name, columns in self.summary()["components"].items()
            if (shares := {column: found["over_bound_share"] for column, found in columns.items() if _is_over_bound(found)})
        }

    def input_counts(self) -> dict[str, Int64Array]:
        """Return the counts of InputGuards by column: `InputGuard.counts`. If several guards read a column, the first guard counts."""
        return {name: counts for guard in reversed(self._guards()) for name, counts in guard.counts().items()}

    def looked_at(self, raw: RawColumns | ReadColumns) -> dict[str, Int64Array]:
        """Return counts of a batch like `input_counts`, without an update: the values are compared with the values of all updates. No statistics are
        changed. Raises: DataError.
        """
        guards = self._guards()
        if not guards:
            return {}
        columns, found = self._columns(raw), dict[str, Int64Array]()
        num_rows = _num_rows(columns)
        for component in self._components[: self._components.index(guards[-1]) + 1]:
            inputs = _inputs(component, columns)
            if isinstance(component, InputGuard):
                for name, (missing, *unlike) in component.look(inputs).items():
                    found.setdefault(name, np.array([num_rows, missing, sum(unlike)]))
            else:
                columns = _passed(component, columns, component.transform(inputs))
        return found

    def unusual_inputs(self, counts: Mapping[str, Int64Array]) -> list[str]:
        """Describe unusual inputs in a part of the stream, with a clause for each column. Args: counts: differences of `input_counts`."""
        found = list[str]()
        for guard in self._guards():
            found += unusual_inputs({name: input_shares(counts[name]) for name in guard.names if name in counts}, guard.config)
        return list(dict.fromkeys(found))

    def extremes(self, raw: RawColumns | ReadColumns) -> dict[str, float]:
        """Return the results of `InputGuard.extremes` of the guards before all other components. No statistics are changed. Columns that do not
        match the section are omitted, because `update` raises the error of these columns.
        """
        guards = list(takewhile(lambda component: isinstance(component, InputGuard), self._components))
        if not guards:
            return {}
        try:
            columns = self._columns(raw)
        except DataError:
            return {}
        found = dict[str, float]()
        for guard in guards:
            if isinstance(guard, InputGuard):
                found |= {name: max(far, found.get(name, 0.0)) for name, far in guard.extremes(_inputs(guard, columns)).items()}
        return found

    def _guards(self) -> list[InputGuard]:
        return [component for component in self._components if isinstance(component, InputGuard)]

    def _named(self) -> dict[str, Component]:
        return {f"{at} {type(component).__name__}": component for at, component in enumerate(self._components)}


@dataclass(frozen=True, eq=False)
class StatisticsSnapshot:
    """A copy of statistics. state: the result of `Preprocessing.state`."""

    config: PreprocessingConfig
    state: State

    @cached_property
    def statistics(self) -> Preprocessing:
        """Return preprocessing with these statistics. The object is built at the first use, and must not be updated."""
        return Preprocessing.from_snapshot(self)

    def to_bytes(self) -> bytes:
        """See `Preprocessing.to_bytes`."""
        return encode_state({"section": self.config.model_dump_json(), "state": self.state})

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read the output of `to_bytes`. Raises: CorruptStateError."""
        decoded = decode_state(content)
        return cls(PreprocessingConfig.model_validate_json(take(decoded, "section", str)), take(decoded, "state", dict))


def check_preprocessing_section(section: Mapping[str, Any], path: str = "preprocessing") -> list[Problem]:
    """Return every mistake of a section that can be found at once: mistakes of the section's own keys, or else mistakes of the first wrong
    component."""
    if found := check_section(PreprocessingConfig, section, path):
        return found
    config = load_section(PreprocessingConfig, section, path)
    types = {name: ColumnType(kind) for name, kind in config.kinds.items()}
    for at, options in enumerate(config.components):
        place = f"{path}.components.{at}"
        if problems := check_policy(COMPONENTS, options, "id", place) or _wrong_columns(options, types, place):
            return problems
        types = _after(types, _built(options, types, place))
    return _without_features(types, path)


def _built(options: Mapping[str, Any], types: Mapping[str, ColumnType], path: str) -> Component:
    policy, config = load_policy(COMPONENTS, options, "id", path)
    refuse(_wrong_columns(options, types, path))
    return policy(config, {name: types[name] for name in _read_by(policy, config, types)})


def _read_by(policy: type[Component], config: Any, types: Mapping[str, ColumnType]) -> list[str]:
    """Return the names of the columns that a component reads."""
    return list(config.columns or [name for name, found in types.items() if found.kind in policy.kinds(config)])


def _wrong_columns(options: Mapping[str, Any], types: Mapping[str, ColumnType], path: str) -> list[Problem]:
    """Find mistakes in the inputs and outputs of a component. Args: options: valid options of the component."""
    policy, config = load_policy(COMPONENTS, options, "id", path)
    kinds, names, found = policy.kinds(config), _read_by(policy, config, types), list[Problem]()
    takes = f"{options['id']} takes columns of the kind {' or '.join(sorted(kinds))}"
    if not names:
        return [Problem(f"{path}.columns", f"there is nothing to read here: {takes}; declare one, or remove the component")]
    for at, name in enumerate(names):
        if name not in types:
            found.append(
                Problem(
                    f"{path}.columns.{at}",
                    f"there is no column '{name}' here{nearest(name, list(types)) or '.'} There are {', '.join(types)}",
                )
            )
        elif types[name].kind not in kinds:
            found.append(Problem(f"{path}.columns.{at}", f"'{name}' is of the kind {types[name].kind} here; {takes}"))
    if not found and (number := policy.num_combinations(config, len(names))) > MOST_COMBINATIONS:
        many = f"{number:,} combinations of {len(names)} columns are more than {MOST_COMBINATIONS:,}; name fewer columns, or lower `degree`"
        found.append(Problem(f"{path}.columns", many))
    output = getattr(config, "output", None)
    if not found and output in types:
        found.append(Problem(f"{path}.output", f"there is a column '{output}' already; choose another name"))
    return found


def _after(types: Mapping[str, ColumnType], component: Component) -> dict[str, ColumnType]:
    return _passed(component, types, component.outputs)


def _passed(component: Component, columns: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns, or their types, after a component: replaced columns keep their places, and new columns are at the end."""
    kept = {
        name: column
        for name, column in columns.items()
        if component.keeps_inputs or name not in component.inputs or name in outputs
    }
    return {**kept, **outputs}


def _without_features(types: Mapping[str, ColumnType], path: str) -> list[Problem]:
    """Return a problem for each column that does not become a number."""
    return [
        Problem(
            f"{path}.columns.{name}",
            f"no component makes features of this {found.kind}; add {_NO_FEATURES[found.kind]} or remove the column",
        )
        for name, found in types.items()
        if found.kind in _NO_FEATURES
    ]


def _is_over_bound(found: Mapping[str, Any]) -> bool:
    return bool(found.get("over_bound") and found["max_categories"])


def _inputs(component: Component, columns: Mapping[str, Column]) -> dict[str, Column]:
    return {name: columns[name] for name in component.inputs}


def _num_rows(columns: Mapping[str, Column]) -> int:
    return len(next(iter(columns.values())))
