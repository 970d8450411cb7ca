"""Evidence of a check: one record for each number, with its threshold. The module also converts evidence for tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from modyn.errors import UserCodeError

UNUSUAL: Final = "unusual"
"""Flag: the verdict on the whole check. Each check with measurements has this flag."""
WARMING_UP: Final = "warming_up"
"""Flag: the check is part of a warm-up. Each check of a warm-up with measurements has this flag."""
FIRST_TRIGGER: Final = "first_trigger"
"""Flag: the policy fires because the run has no reference yet."""
COOLING_DOWN: Final = "cooling_down"
"""Flag: too few samples have arrived since the last trigger."""
DETECTED_BEFORE: Final = "detected_before"
"""Flag: a detection of an earlier check is still valid."""
PAUSED: Final = "paused"
"""Flag: the policy would fire if predictions were not too slow."""
IN_A_ROW: Final = "unusual_in_a_row"
"""Count of consecutive unusual checks, if several unusual checks are needed to fire."""
DETECTIONS: Final = "detections"
"""Count of the changes that a stream detector has found since the last check."""


class EvidenceKind(StrEnum):
    """Kinds of numbers in records."""

    VALUE = "value"
    """A measured value, such as a distance or a score, with or without a verdict."""
    DETAIL = "detail"
    """A number from which a value was computed. Tables show the number, and short lists leave the number out."""
    COUNT = "count"
    """A number of samples, checks or detections."""
    FLAG = "flag"
    """A flag with the number 1 or 0, such as `warming_up`."""
    VOTE = "vote"
    """The vote of a subtrigger, 1 or 0."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number of a check, and the threshold to which the number was compared.

    >>> Evidence("mmd", 0.2, threshold=0.1, unusual=True).name
    'mmd'
    """

    series: str
    """Name of the measured series, such as `mmd`; the name of the flag; or for a vote, the name of the subtrigger."""
    value: float
    threshold: float | None = None
    """Threshold to which the value was compared."""
    unusual: bool | None = None
    """The verdict on this number; None if no criterion has judged the number."""
    p_value: float | None = None
    """p-value of a test: the probability of at least this distance if the distribution has not changed."""
    level: float | None = None
    """Threshold to which the p-value was compared, if the p-value decided."""
    seconds: float | None = None
    """Seconds that the measurement took."""
    criterion: str = ""
    """Name of the criterion that judged the number, if several criteria may judge one series."""
    kind: EvidenceKind = EvidenceKind.VALUE
    subtrigger: str = ""
    """Path of the subtrigger in ensembles, such as `outer/drift`; empty for the policy itself."""

    def __post_init__(self) -> None:
        if not isinstance(self.series, str) or not isinstance(self.value, int | float):
            raise UserCodeError(f"{self!r} is not evidence: `series` must be a str, `value` a number")

    @classmethod
    def count(cls, series: str, number: float) -> Evidence:
        """Return a record for a number of samples, checks or detections."""
        return cls(series, float(number), kind=EvidenceKind.COUNT)

    @classmethod
    def flag(cls, name: str, *, is_set: bool = True) -> Evidence:
        """Return a record for a flag."""
        return cls(name, float(is_set), kind=EvidenceKind.FLAG)

    @classmethod
    def detail(cls, series: str, value: float) -> Evidence:
        """Return a record for a number from which a value was computed."""
        return cls(series, value, kind=EvidenceKind.DETAIL)

    @property
    def name(self) -> str:
        """Return the path of subtriggers, the series and the criterion as one name: `drift/mmd`, `Accuracy.static`."""
        return _name(self.subtrigger, self.series, self.criterion)

    @property
    def is_judged(self) -> bool:
        """Return whether a criterion judges the number, even if the criterion has no threshold yet."""
        return self.threshold is not None or self.level is not None or self.unusual is not None

    def is_of_subtrigger(self, name: str) -> bool:
        """Return whether the record belongs to the subtrigger `name` of an ensemble, or to an ensemble inside this subtrigger."""
        return self.subtrigger.partition("/")[0] == name

    def within(self, name: str) -> Evidence:
        """Return the record without `name` at the start of its path `subtrigger`. The method reverses `of_subtrigger`."""
        return replace(self, subtrigger=self.subtrigger.removeprefix(name).removeprefix("/"))

    def of_subtrigger(self, name: str) -> Evidence:
        """Return the record with `name` before its path `subtrigger`, for an ensemble that contains this subtrigger."""
        return replace(self, subtrigger=f"{name}/{self.subtrigger}" if self.subtrigger else name)


def _name(subtrigger: str, series: str, criterion: str) -> str:
    path = f"{subtrigger}/" if subtrigger else ""
    return f"{path}{series}.{criterion}" if criterion else f"{path}{series}"


def find(evidence: Iterable[Evidence], series: str, kind: EvidenceKind = EvidenceKind.VALUE) -> Evidence | None:
    """Return the first record of a series of the policy itself; None if there is no record."""
    return next((one for one in evidence if one.series == series and one.kind is kind and not one.subtrigger), None)


def value_of(evidence: Iterable[Evidence], series: str, kind: EvidenceKind = EvidenceKind.VALUE) -> float | None:
    """Return the number of a series of the policy itself; None if there is no record.

    >>> value_of([Evidence("mmd", 0.2), Evidence.count("current_samples", 50)], "current_samples", EvidenceKind.COUNT)
    50.0
    """
    found = find(evidence, series, kind)
    return None if found is None else found.value


def required_value(evidence: Sequence[Evidence], series: str, kind: EvidenceKind = EvidenceKind.VALUE) -> float:
    """Return the number of a series of the policy itself. The record must exist: a missing number never counts as 0.

    Raises: UserCodeError: there is no record, because a subclass or an earlier version of the policy has not measured the series.
    """
    found = value_of(evidence, series, kind)
    if found is None:
        there = ", ".join(one.name for one in evidence) or "nothing"
        raise UserCodeError(f"the evidence of a check lacks the {kind} '{series}', which its policy decides by; there: {there}")
    return found


def is_flagged(evidence: Iterable[Evidence], name: str) -> bool:
    """Return whether the policy itself has set a flag."""
    return bool(value_of(evidence, name, EvidenceKind.FLAG))


class EvidenceColumn(NamedTuple):
    """A column of evidence in tables. The first four fields select the records; `field` selects the number of each record."""

    subtrigger: str
    series: str
    criterion: str
    kind: EvidenceKind
    field: str
    """Name of the record's field: `value`, `threshold`, `unusual`, `p_value`, `level` or `seconds`."""

    @property
    def name(self) -> str:
        """Name of the column in tables: `mmd`, `mmd.threshold`, `drift/mmd.p_value`, `drift.vote`."""
        suffix = {"value": ".vote" if self.kind is EvidenceKind.VOTE else "", "level": ".p_value.threshold"}
        return _name(self.subtrigger, self.series, self.criterion) + suffix.get(self.field, f".{self.field}")

    @property
    def is_flag(self) -> bool:
        """Whether the column's numbers are 1 or 0."""
        return self.field == "unusual" or self.kind in (EvidenceKind.FLAG, EvidenceKind.VOTE)

    @property
    def is_count(self) -> bool:
        """Whether the column's numbers are integers."""
        return self.kind is EvidenceKind.COUNT


def columns_of(evidence: Iterable[Evidence]) -> dict[EvidenceColumn, float]:
    """Return evidence as one row of a table: column → number."""
    found = dict[EvidenceColumn, float]()
    for one in evidence:
        for name in ("value", "p_value", "seconds", "threshold", "level", "unusual"):
            if (number := getattr(one, name)) is not None:
                criterion = "" if name in ("value", "p_value", "seconds") else one.criterion
                found[EvidenceColumn(one.subtrigger, one.series, criterion, one.kind, name)] = float(number)
    return found


def column_names(columns: Iterable[EvidenceColumn]) -> dict[EvidenceColumn, str]:
    """Return a unique name for each column. If two columns would have the same name, the kind of the number is added in brackets.

    >>> list(column_names(columns_of([Evidence.flag("unusual"), Evidence("unusual", 0.5)])).values())
    ['unusual', 'unusual (value)']
    """
    names, taken = dict[EvidenceColumn, str](), set[str]()
    for column in columns:
        name = column.name
        while name in taken:
            name = f"{name} ({column.kind})"
        names[column] = name
        taken.add(name)
    return names
