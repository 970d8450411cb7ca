"""What the evidence of a check says, read from its names: values with their thresholds, votes, and what kept it from firing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_NOTES: Final = {
    "warming_up": "warming up",
    "first_trigger": "first trigger",
    "cooling_down": "cooling down",
    "detected_before": "detected before",
    "paused": "pauses for predictions",
}
DETECTIONS: Final = "detections"
"""Evidence of a stream detector: how often it has found a change since the last check."""
_UNUSUAL: Final = "unusual"
_IN_A_ROW: Final = "unusual_in_a_row"
_LEVEL: Final = ".p_value.threshold"
_SUFFIXES: Final = ("threshold", "unusual", "p_value", "seconds", "vote")


@dataclass(frozen=True, slots=True)
class SeriesCheck:
    """One series of evidence at one check, judged by one criterion. None: there is no such evidence."""

    name: str
    """Behind the path of subtriggers, if there are any: `drift/mmd`."""
    value: float | None
    threshold: float | None = None
    """What the value was compared with."""
    unusual: bool | None = None
    p_value: float | None = None
    level: float | None = None
    """What the p-value was compared with."""
    series: str | None = None
    """The name of the value."""


@dataclass(frozen=True, slots=True)
class ExplainedCheck:
    """The evidence of a check by its meaning."""

    series: tuple[SeriesCheck, ...]
    """By name; those that were compared with something come first."""
    votes: Mapping[str, bool]
    """Of the subtriggers, by name."""
    notes: tuple[str, ...]
    """What else decided: that it warms up or cools down, how many unusual checks there were in a row."""
    unusual: bool | None
    """The whole check; None: nothing was measured, or it was not judged."""


def explain_check(evidence: Mapping[str, float]) -> ExplainedCheck:
    """Read the evidence of a check; see `Check.evidence`.

    >>> explain_check({"mmd": 0.2, "mmd.threshold": 0.1, "mmd.unusual": 1, "unusual": 1, "current_samples": 50}).series
    (SeriesCheck(name='mmd', value=0.2, threshold=0.1, unusual=True, p_value=None, level=None, series='mmd'),)
    """
    # What came through PostgreSQL or a message has no order of its own.
    values = sorted(name for name in evidence if is_value(name))
    of = {name: _series_of(name, values) for name in _judged(evidence)}
    rows: list[tuple[str, str | None]] = sorted(of.items())
    # Beside what was judged, a name with a dot is a detail of it: what a score was calibrated to, what was expected.
    rows += [(name, name) for name in values if name not in of.values() and not (of and "." in _own(name))]
    unusual = evidence.get(_UNUSUAL)
    return ExplainedCheck(
        tuple(_series(name, series, evidence) for name, series in rows),
        {name.removesuffix(".vote"): bool(vote) for name, vote in sorted(evidence.items()) if _has(name, "vote")},
        tuple(note for name, value in sorted(evidence.items()) if (note := _note(name, value))),
        None if unusual is None else bool(unusual),
    )


def is_value(name: str) -> bool:
    """Whether evidence of this name is the value of a series: not what belongs to one, no flag and no count."""
    return not (is_flag(name) or is_count(name) or any(_has(name, suffix) for suffix in _SUFFIXES))


def is_flag(name: str) -> bool:
    """Whether evidence of this name is 1 or 0 for yes or no."""
    own = _own(name)
    return own in (_UNUSUAL, *_NOTES) or _has(name, "unusual") or _has(name, "vote")


def is_count(name: str) -> bool:
    """Whether evidence of this name is a number of samples, of checks or of detections."""
    own = _own(name)
    return own in (_IN_A_ROW, DETECTIONS) or own.endswith("_samples")


def is_warming_up(evidence: Mapping[str, float]) -> bool:
    """Whether the check, or that of a subtrigger, was one of the warm-up."""
    return any(value for name, value in evidence.items() if _own(name) == "warming_up")


def _series(name: str, series: str | None, evidence: Mapping[str, float]) -> SeriesCheck:
    unusual = evidence.get(f"{name}.unusual")
    return SeriesCheck(
        name,
        None if series is None else evidence[series],
        evidence.get(f"{name}.threshold"),
        None if unusual is None else bool(unusual),
        evidence.get(f"{series}.p_value"),
        evidence.get(f"{name}{_LEVEL}"),
        series,
    )


def _judged(evidence: Mapping[str, float]) -> list[str]:
    """The names under which criteria have judged, each once."""
    found = [name.rpartition(".")[0] for name in evidence if _has(name, "threshold") or _has(name, "unusual")]
    return sorted({name.removesuffix(".p_value") for name in found})


def _series_of(judged: str, values: Sequence[str]) -> str | None:
    """The series that a criterion judges: of its own name, or one that several judge, whose name theirs begin with."""
    path = judged.removesuffix(_own(judged))
    of_path = [name for name in values if name.removesuffix(_own(name)) == path]
    return max((name for name in of_path if judged.startswith(name)), key=len, default=None)


def _note(name: str, value: float) -> str:
    own = _own(name)
    note = _NOTES.get(own, "") if value else ""
    if own == _IN_A_ROW:
        note = f"{value:.0f} unusual in a row"
    child = name.removesuffix(own).removesuffix("/")
    return f"{child} {note}" if child and note else note


def _own(name: str) -> str:
    """The name behind the path of subtriggers."""
    return name.rpartition("/")[2]


def _has(name: str, suffix: str) -> bool:
    return name.endswith(f".{suffix}")
