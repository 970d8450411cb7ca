"""The checks of a trigger policy as text: measurements, thresholds, and decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from modyn.cli.views.output import date
from modyn.supervisor.evidence import (
    COOLING_DOWN,
    DETECTED_BEFORE,
    FIRST_TRIGGER,
    IN_A_ROW,
    PAUSED,
    UNUSUAL,
    WARMING_UP,
    Evidence,
    EvidenceKind,
    is_flagged,
)

if TYPE_CHECKING:
    from modyn.supervisor.client import CheckRecord

_SHOWN_SERIES = 3
_NOTES: Final = {
    WARMING_UP: "warming up",
    FIRST_TRIGGER: "first trigger",
    COOLING_DOWN: "cooling down",
    DETECTED_BEFORE: "detected before",
    PAUSED: "pauses for predictions",
}


def check_line(check: CheckRecord) -> str:
    """Format a check as one line."""
    when = f" ({date(check.timestamp)})" if check.timestamp is not None else ""
    said = "; ".join(filter(None, [evidence_text(check.evidence), verdict_text(check.evidence, fires=check.fires)]))
    which = "check of steps" if check.online else "check"
    return f"{which} after {check.position:,} samples{when}: {said}, {check.seconds:.2f} s"


def evidence_text(evidence: Sequence[Evidence], shown: int | None = _SHOWN_SERIES) -> str:
    """Format the evidence of a check as in the example, and the votes of subtriggers.

    Args: shown: largest number of series that are shown, unusual series first; None: all.

    >>> evidence_text([Evidence("mmd", 0.0123, threshold=0.01, unusual=True), Evidence.flag("unusual")])
    'mmd 0.0123 > 0.0100 unusual'
    """
    values = [one for one in evidence if one.kind is EvidenceKind.VALUE]
    values.sort(key=lambda one: (not one.is_judged, one.name))
    if shown is not None and len(values) > shown:
        values.sort(key=lambda one: not one.unusual)
    texts = [series_text(one) for one in values[:shown]]
    if len(values) > len(texts):
        texts.append(f"{len(values) - len(texts)} more")
    cast = sorted((one.name, one.value) for one in evidence if one.kind is EvidenceKind.VOTE)
    votes = ", ".join(f"{name} {'yes' if vote else 'no'}" for name, vote in cast)
    return "; ".join(filter(None, [", ".join(texts), f"votes: {votes}" if votes else ""])) or "nothing measured"


def verdict_text(evidence: Sequence[Evidence], *, fires: bool) -> str:
    """Format the result of a check: notes such as `warming up`, and the word `fires` or `unusual`; empty for a usual check without notes."""
    notes = [note for one in sorted(evidence, key=lambda one: one.name) if (note := _note(one))]
    return ", ".join([*notes, *(["fires"] if fires else ["unusual"] if is_flagged(evidence, UNUSUAL) else [])])


def _note(one: Evidence) -> str:
    note = _NOTES.get(one.series, "") if one.kind is EvidenceKind.FLAG and one.value else ""
    if one.kind is EvidenceKind.COUNT and one.series == IN_A_ROW:
        note = f"{one.value:.0f} unusual in a row"
    return f"{one.subtrigger} {note}" if one.subtrigger and note else note


def series_text(one: Evidence) -> str:
    """Format one series at one check: its value, the threshold or level for the comparison, and whether the value is unusual. If the value has a
    threshold but no level, the p-value is left out.
    """
    text = f"{one.name} {_compared(one.value, one.threshold)}"
    if one.p_value is not None and (one.threshold is None or one.level is not None):
        text += f" (p {_compared(one.p_value, one.level)})"
    if one.unusual is not None and one.threshold is None and one.level is None:
        text += " (no threshold yet)"
    return text + (" unusual" if one.unusual else "")


def _compared(value: float, threshold: float | None) -> str:
    if threshold is None:
        return _number(value)
    sign = "=" if value == threshold else ">" if value > threshold else "<"
    return f"{_number(value)} {sign} {_number(threshold)}"


def _number(value: float) -> str:
    if value and abs(value) < 0.001:
        return f"{value:.2e}"
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.0f}"
