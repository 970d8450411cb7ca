"""Lines and reports of measured rounds."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence

from benchmark.data_path import page_cache
from benchmark.data_path.figure import Case, Figure, Measured, Missing, Result

_QUIET_CORES = 0.2
"""Most cores that other processes may use when a figure begins."""


def headline(results: Sequence[Result]) -> Result | None:
    """Return the case, warm or cold, with the worst ratio to its target; None: nothing was compared."""
    compared = [result for result in results if result.ratios and result.case.target is not None]
    return min(compared, key=lambda result: statistics.median(result.ratios) / (result.case.target or 1.0), default=None)


def named(cases: Sequence[Case], results: Sequence[Result]) -> list[str]:
    """Return a line with the name of the case that the last line is about, if it is about one."""
    worst = None if _missing(cases) else headline(results)
    return [f"least against its target: {worst.case.name}, {worst.cache}"] if worst is not None else []


def last_line(figure: Figure, cases: Sequence[Case], results: Sequence[Result]) -> str:
    """Return the last line, as `a: 1.07`. A figure that compares nothing has its best value; `incomplete`: other sides are missing."""
    if _missing(cases):
        return f"{figure.letter}: incomplete"
    worst = headline(results)
    if worst is not None:
        return f"{figure.letter}: {statistics.median(worst.ratios):.2f}"
    if not results:
        return f"{figure.letter}: not measured"
    values = [statistics.median(run.value for run in result.ours) for result in results]
    return f"{figure.letter}: {max(values) if figure.more_is_better else min(values):.5g}"


def case_lines(figure: Figure, cases: Sequence[Case], results: Sequence[Result]) -> list[str]:
    """Return a line for each case: `a[workers=1]: 1.12 (target 1.0)`."""
    lines = []
    for result in results:
        name = f"{figure.letter}[{result.case.name}{f', {result.cache}' if result.cold else ''}]"
        if result.ratios:
            ratio = statistics.median(result.ratios)
            wanted = "" if result.case.target is None else f" (target {result.case.target:g})"
            lines.append(f"{name}: {ratio:.2f}{wanted}")
        else:
            lines.append(f"{name}: {_spread(result.ours)} {figure.unit}")
    lines += [f"{figure.letter}[{name}]: not measured: {why}" for name, why in _missing(cases)]
    return lines


def body(
    figure: Figure,
    cases: Sequence[Case],
    results: Sequence[Result],
    samples: int,
    busy: float,
) -> str:
    """Return the report without its heading."""
    cold = f"; cold by {page_cache.how()}" if any(result.cold for result in results) else ""
    parts = [
        f"Figure {figure.letter}: {figure.title}. {samples:,} samples unless the case says otherwise{cold}. All sides in turn, in the other "
        f"order in every second round, after one round that does not count. Cores busy with other work right before: {busy:.2f} of {os.cpu_count()}."
        + (" **Not to be quoted.**" if busy > _QUIET_CORES else ""),
        _table(figure, results),
    ]
    missing = _missing(cases)
    if missing:
        parts.append("Not measured:\n\n" + "\n".join(f"- {name}: {why}" for name, why in missing))
    details = _details(results)
    if details:
        parts.append(details)
    parts.append(_rounds(figure, results))
    parts += [f"{line[0].upper()}{line[1:]}. `{last_line(figure, cases, results)}`" for line in named(cases, results)]
    return "\n\n".join(parts)


def _missing(cases: Sequence[Case]) -> list[tuple[str, str]]:
    return [(case.name, case.theirs.reason) for case in cases if isinstance(case.theirs, Missing)]


def _table(figure: Figure, results: Sequence[Result]) -> str:
    rows = [
        f"| case | page cache | ours, {figure.unit} | theirs, {figure.unit} | median ratio (range) | target |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        ratio = "–"
        if result.ratios:
            ratio = f"**{statistics.median(result.ratios):.2f}** ({min(result.ratios):.2f}–{max(result.ratios):.2f})"
        target = "–" if result.case.target is None else f"{result.case.target:g}"
        sides = f"{_spread(result.ours)} | {_spread(result.theirs)}"
        rows.append(f"| {result.case.name} | {result.cache} | {sides} | {ratio} | {target} |")
    return "\n".join(rows)


def _details(results: Sequence[Result]) -> str:
    rows = []
    for result in results:
        for side, runs in (("ours", result.ours), ("theirs", result.theirs)):
            names = dict.fromkeys(name for run in runs for name in run.details)
            for name in names:
                values = [run.details[name] for run in runs if name in run.details]
                rows.append(f"| {result.case.name} | {result.cache} | {side} | {name} | {statistics.median(values):,.4g} |")
    return (
        "\n".join(
            [
                "Further medians:",
                "",
                "| case | page cache | side | what | median |",
                "|---|---|---|---|---|",
                *rows,
            ]
        )
        if rows
        else ""
    )


def _rounds(figure: Figure, results: Sequence[Result]) -> str:
    rows = [
        f"All rounds, {figure.unit}; the run that does not count stands in parentheses:",
        "",
        "| case | page cache | side | runs |",
        "|---|---|---|---|",
    ]
    for result in results:
        for side, runs in (("ours", result.ours), ("theirs", result.theirs)):
            if runs:
                values = ", ".join(f"{run.value:,.4g}" for run in runs)
                if side in result.warming:
                    values = f"({result.warming[side].value:,.4g}) {values}"
                rows.append(f"| {result.case.name} | {result.cache} | {side} | {values} |")
    return "\n".join(rows)


def _spread(runs: Sequence[Measured]) -> str:
    """Return the median with minimum and maximum."""
    if not runs:
        return "–"
    values = [run.value for run in runs]
    return f"{statistics.median(values):,.4g} ({min(values):,.4g}–{max(values):,.4g})"
