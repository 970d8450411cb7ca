"""Preprocessing: components one after the other, made from the section `preprocessing` of a pipeline file."""

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
from modyn.preprocessing.features import FeatureRange, Features, assemble, feature_ranges
from modyn.preprocessing.input_guard import InputCounts, InputGuard, input_shares, unusual_inputs
from modyn.preprocessing.state_bytes import decode_state, encode_state
from modyn.registry import nearest

_NO_FEATURES: Final = {
    ColumnKind.CATEGORY: "a OneHotEncoder, a HashedEncoder, a LabelIndexer or a FeatureHasher",
    ColumnKind.TEXT: "TokenCounts",
}


class PreprocessingConfig(ColumnSchema):
    """The section `preprocessing`: the columns of a sample, and what is done with them, in order."""

    components: tuple[dict[str, Any], ...] = Field(
        (), description="each with its `id`, the `columns` that it reads, and its options; what no component takes passes through"
    )


class Preprocessing:
    """Statistics of a stream, and the features that they make of samples.

    Each component updates its statistics with what the one before it gives, and transforms by them, as scikit-learn's partial_fit and transform.

    **Deterministic.** The same batches in the same order give the same state and features, bit by bit. `transform` changes nothing and gives each
    row the same bits, alone or in a batch: what serves a model computes what it was trained on.
    **Bounded.** Memory and the number of features depend on the section only, not on the stream.
    **Merged.** Statistics of two parts of a stream merge as if one part had come after the other. A component that follows another one with
    statistics has seen each part as that part's statistics had made it.
    """

    def __init__(self, section: Mapping[str, Any], path: str = "preprocessing") -> None:
        """Args: section: as in the pipeline file. path: where it stands there. Raises: ConfigError: lists every mistake of the first wrong place."""
        self.config = load_section(PreprocessingConfig, section, path)
        self.num_rows = 0
        """Rows that updates brought."""
        self.kinds = self.config.kinds
        """Of the declared columns, by name."""
        types = {name: ColumnType(kind) for name, kind in self.kinds.items()}
        self._components: list[Component] = []
        for at, options in enumerate(self.config.components):
            self._components.append(_built(options, types, f"{path}.components.{at}"))
            types = _after(types, self._components[-1])
        refuse(_without_features(types, path))
        self.ranges: tuple[FeatureRange, ...] = feature_ranges(types)
        """Where the features of each column stand."""

    @cached_property
    def parser(self) -> ColumnParser:
        """What makes columns of payloads. Raises: ConfigError: the section has no `format`."""
        return ColumnParser(self.config)

    @property
    def num_features(self) -> int:
        """Dense and sparse features together; fixed by the section."""
        return self.num_dense + self.num_sparse

    @property
    def num_dense(self) -> int:
        """Width of `Features.dense`."""
        return sum(found.width for found in self.ranges if not found.sparse)

    @property
    def num_sparse(self) -> int:
        """Bound of `Features.indices`."""
        return sum(found.width for found in self.ranges if found.sparse)

    def read(self, raw: RawColumns) -> ReadColumns:
        """The columns of a batch, for several calls of objects of this section. Raises: DataError: they are not as declared."""
        return ReadColumns.of(raw, self.kinds)

    def _columns(self, given: RawColumns | ReadColumns) -> Columns:
        return (given if isinstance(given, ReadColumns) else self.read(given)).columns

    def update(self, raw: RawColumns | ReadColumns) -> None:
        """Take a batch into all statistics. The state afterwards is that of `update_and_transform`. Raises: DataError: nothing was changed."""
        columns = self._columns(raw)
        self.num_rows += _num_rows(columns)
        for component in self._components[:-1]:
            columns = _passed(component, columns, component.update_and_transform(_inputs(component, columns)))
        if self._components:
            self._components[-1].update(_inputs(self._components[-1], columns))

    def transform(self, raw: RawColumns | ReadColumns) -> Features:
        """Features of n rows by the statistics as they are, which do not change. Raises: DataError."""
        return self._transformed(raw, lambda *_: None)

    def transform_and_look(self, raw: RawColumns | ReadColumns) -> tuple[Features, dict[str, InputCounts]]:
        """As `transform`, and by column what InputGuards find unlike all before; of a column that several read, the first one. Raises: DataError."""
        found = dict[str, InputCounts]()

        def look(component: Component, columns: Columns) -> None:
            if isinstance(component, InputGuard):
                found.update({name: counts for name, counts in component.look(columns).items() if name not in found})

        return self._transformed(raw, look), found

    def _transformed(self, raw: RawColumns | ReadColumns, look: Callable[[Component, Columns], None]) -> Features:
        """Args: look: is shown each component and its inputs."""
        columns = self._columns(raw)
        num_rows = _num_rows(columns)
        for component in self._components:
            inputs = _inputs(component, columns)
            look(component, inputs)
            columns = _passed(component, columns, component.transform(inputs))
        return assemble(columns, self.ranges, num_rows)

    def update_and_transform(self, raw: RawColumns | ReadColumns) -> Features:
        """Let each component update its statistics and then transform by them what the next one gets.

        Raises: DataError: columns are not as declared, and nothing was changed; or a feature is missing or too large, and statistics have the batch.
        """
        columns = self._columns(raw)
        num_rows = _num_rows(columns)
        self.num_rows += num_rows
        for component in self._components:
            columns = _passed(component, columns, component.update_and_transform(_inputs(component, columns)))
        return assemble(columns, self.ranges, num_rows)

    def merge(self, other: Self) -> None:
        """Add the statistics of another part of the stream. Raises: ConflictError: `other` is made from another section."""
        if other.config != self.config:
            raise ConflictError(
                "statistics of different preprocessing sections cannot be merged; use the same columns and components for both"
            )
        for component, another in zip(self._components, other._components, strict=True):
            component.merge(another)
        self.num_rows += other.num_rows

    def state(self) -> State:
        """All statistics, by place and name of the component."""
        return {"num_rows": self.num_rows, **{name: component.state() for name, component in self._named().items()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace all statistics. Raises: CorruptStateError: the state is of other components; statistics may then be replaced in part."""
        expected = ["num_rows", *self._named()]
        if sorted(state) != sorted(expected):
            raise CorruptStateError(
                f"the state of preprocessing has {', '.join(state)}, not {', '.join(expected)}; restore a state of this pipeline"
            )
        for name, component in self._named().items():
            component.load_state(take(state, name, dict))
        self.num_rows = take(state, "num_rows", int)

    def to_bytes(self) -> bytes:
        """Section and statistics, versioned and with a checksum; equal for equal statistics."""
        return self.snapshot().to_bytes()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """What `to_bytes` has written. Raises: CorruptStateError: damaged or of another version. ConfigError: a component is not installed here."""
        return cls.from_snapshot(StatisticsSnapshot.from_bytes(content))

    def snapshot(self) -> StatisticsSnapshot:
        """The statistics as they are. With large vocabularies a copy of them takes a fraction of what `to_bytes` and `from_snapshot` take."""
        return StatisticsSnapshot(self.config, self.state())

    @classmethod
    def from_snapshot(cls, snapshot: StatisticsSnapshot) -> Self:
        """Statistics of their own, as `snapshot` has kept them. Raises: as `from_bytes`."""
        found = cls(snapshot.config.model_dump())
        found.load_state(snapshot.state)
        return found

    def summary(self) -> dict[str, Any]:
        """For users: rows, features, and by component and column means, sizes of vocabularies, shares over the bound; what JSON can express."""
        components = {name: found for name, component in self._named().items() if (found := component.summary())}
        return {
            "rows": self.num_rows,
            "dense_features": self.num_dense,
            "sparse_features": self.num_sparse,
            "components": components,
        }

    def over_bound(self) -> dict[str, dict[str, float]]:
        """By component and column, the share of values so far that a full vocabulary does not hold; without those that it holds all, or is none."""
        return {
            name: shares
            for name, columns in self.summary()["components"].items()
            if (shares := {column: found["over_bound_share"] for column, found in columns.items() if _is_over_bound(found)})
        }

    def input_counts(self) -> dict[str, Int64Array]:
        """What InputGuards have counted, by column: `InputGuard.counts`. Of a column that several read, by the first one."""
        return {name: counts for guard in reversed(self._guards()) for name, counts in guard.counts().items()}

    def looked_at(self, raw: RawColumns | ReadColumns) -> dict[str, Int64Array]:
        """Counts as of `input_counts` of a batch that is no update: what is unlike all that updates brought. Changes nothing. Raises: DataError."""
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
        """What is unusual in a stretch of the stream, a clause for each column. Args: counts: differences of `input_counts`."""
        found = list[str]()
        for guard in self._guards():
            found += unusual_inputs({name: input_shares(counts[name]) for name in guard.names if name in counts}, guard.config)
        return list(dict.fromkeys(found))

    def extremes(self, raw: RawColumns | ReadColumns) -> dict[str, float]:
        """What `InputGuard.extremes` finds, of those before all other components. Changes nothing; columns that are not as declared have none, for
        `update` says what is wrong with them."""
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
    """Statistics as they were when it was taken. state: of `Preprocessing.state`."""

    config: PreprocessingConfig
    state: State

    @cached_property
    def statistics(self) -> Preprocessing:
        """What transforms by them: made once, when it is first asked for, and not to be updated."""
        return Preprocessing.from_snapshot(self)

    def to_bytes(self) -> bytes:
        """As `Preprocessing.to_bytes`."""
        return encode_state({"section": self.config.model_dump_json(), "state": self.state})

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """What `to_bytes` has written. Raises: CorruptStateError."""
        decoded = decode_state(content)
        return cls(PreprocessingConfig.model_validate_json(take(decoded, "section", str)), take(decoded, "state", dict))


def check_preprocessing_section(section: Mapping[str, Any], path: str = "preprocessing") -> list[Problem]:
    """Every mistake of a section, as far as they can be found at once: those of the frame, else those of the first wrong component."""
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
    """Names of the columns that a component reads."""
    return list(config.columns or [name for name, found in types.items() if found.kind in policy.kinds(config)])


def _wrong_columns(options: Mapping[str, Any], types: Mapping[str, ColumnType], path: str) -> list[Problem]:
    """Mistakes in what a component reads and gives. Args: options: valid ones."""
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
    """Columns, or their types, behind a component: replaced ones at their places, new ones at the end."""
    kept = {
        name: column
        for name, column in columns.items()
        if component.keeps_inputs or name not in component.inputs or name in outputs
    }
    return {**kept, **outputs}


def _without_features(types: Mapping[str, ColumnType], path: str) -> list[Problem]:
    """A problem for each column that comes out as no number."""
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
