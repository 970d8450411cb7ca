"""The checks of a trigger policy as texts: what was measured, what it was compared with, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modyn.cli.output import date
from modyn.supervisor.check_series import SeriesCheck, explain_check

_SHOWN_SERIES = 3


def check_line(detail: Mapping[str, Any]) -> str:
    """Format the event of a check as one line. Args: detail: as `EventKind.CHECK` documents."""
    when = f" ({date(detail['timestamp'])})" if detail.get("timestamp") is not None else ""
    evidence = detail["evidence"]
    said = "; ".join(filter(None, [evidence_text(evidence), verdict_text(evidence, fires=detail["fires"])]))
    which = "check of steps" if detail.get("online") else "check"
    return f"{which} after {detail['position']:,} samples{when}: {said}, {detail['seconds']:.2f} s"


def evidence_text(evidence: Mapping[str, float], shown: int | None = _SHOWN_SERIES) -> str:
    """Format what a check measured, as `mmd 0.0123 > 0.0100 unusual`, and the votes of subtriggers.

    Args: shown: series of many that are, unusual ones first; None: all.

    >>> evidence_text({"mmd": 0.0123, "mmd.threshold": 0.01, "mmd.unusual": 1, "unusual": 1})
    'mmd 0.0123 > 0.0100 unusual'
    """
    found = explain_check(evidence)
    series = (
        sorted(found.series, key=lambda one: not one.unusual) if shown is not None and len(found.series) > shown else found.series
    )
    texts = [series_text(one) for one in series[:shown]]
    if len(series) > len(texts):
        texts.append(f"{len(series) - len(texts)} more")
    votes = ", ".join(f"{name} {'yes' if vote else 'no'}" for name, vote in found.votes.items())
    return "; ".join(filter(None, [", ".join(texts), f"votes: {votes}" if votes else ""])) or "nothing measured"


def verdict_text(evidence: Mapping[str, float], *, fires: bool) -> str:
    """Format what came of a check: that it fires, or why not although it is unusual; empty: it was as usual."""
    found = explain_check(evidence)
    return ", ".join([*found.notes, *(["fires"] if fires else ["unusual"] if found.unusual else [])])


def series_text(one: SeriesCheck) -> str:
    """Format one series at one check: its value, the threshold or level that it was compared with, and whether it is unusual.

    A p-value that nothing was decided by is left out.
    """
    text = f"{one.name} {_compared(one.value, one.threshold)}"
    if one.p_value is not None and (one.threshold is None or one.level is not None):
        text += f" (p {_compared(one.p_value, one.level)})"
    if one.unusual is not None and one.threshold is None and one.level is None:
        text += " (no threshold yet)"
    return text + (" unusual" if one.unusual else "")


def _compared(value: float | None, threshold: float | None) -> str:
    if value is None or threshold is None:
        return _number(value if threshold is None else threshold)
    sign = "=" if value == threshold else ">" if value > threshold else "<"
    return f"{_number(value)} {sign} {_number(threshold)}"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    if value and abs(value) < 0.001:
        return f"{value:.2e}"
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.0f}"
