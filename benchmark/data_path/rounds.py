"""Runs the sides of all cases in turn, round by round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmark.data_path import page_cache
from benchmark.data_path.figure import IN_MEMORY, Case, Figure, Measured, Missing, Result, Side


def run_rounds(
    figure: Figure, cases: Sequence[Case], pairs: int, *, cold: bool, uncounted: bool, log: Callable[[str], None]
) -> list[Result]:
    """Run `pairs` rounds over the cases that can be measured.

    Each side runs once a round, also if it is in several cases. Every second round runs the sides in reverse order.

    Args: uncounted: run a warm round before them that is not counted. It starts processes that later rounds use, and finds mistakes early.
    """
    results = [Result(case, cold) for case in cases if not isinstance(case.theirs, Missing) and (case.cold or not cold)]
    data: dict[Side, list[Path]] = {}
    for result in results:
        for side in _sides(result.case):
            data.setdefault(side, list(side.files or result.case.data))
    for number in range(0 if uncounted else 1, pairs + 1):
        order = list(data) if number % 2 else list(reversed(data))
        ran = {side: _run_cold(side, data[side]) if cold and number else side.run(_nothing) for side in order}
        for result in results:
            if number == 0:
                names = zip(("ours", "theirs"), _sides(result.case), strict=False)
                result.warming.update({name: ran[side] for name, side in names})
            else:
                log(_record(figure, result, ran, number))
    return results


def _record(figure: Figure, result: Result, ran: dict[Side, Measured], number: int) -> str:
    """Add a round to the result of a case, and describe it in a line."""
    case = result.case
    ours = ran[case.ours]
    result.ours.append(ours)
    line = f"{'cold ' if result.cold else ''}round {number}, {case.name}: ours {ours.value:,.5g} {figure.unit}"
    theirs = _other(case, ran)
    if theirs is not None:
        result.theirs.append(theirs)
        ratio = ours.value / theirs.value if figure.more_is_better else theirs.value / ours.value
        result.ratios.append(ratio)
        line += f", theirs {theirs.value:,.5g}, ratio {ratio:.2f}"
    return line


def _run_cold(side: Side, data: Sequence[Path]) -> Measured:
    """Measure a cold run, with the share of the data that stayed in memory because a process has it mapped."""
    if side.fresh is not None:
        side.fresh()
    left: list[float] = []
    measured = side.run(lambda: left.append(page_cache.drop(data)))
    return Measured(measured.value, {**measured.details, IN_MEMORY: 100 * left[0]})


def _nothing() -> None:
    """Do nothing before a warm run: all data is in the page cache."""


def _sides(case: Case) -> list[Side]:
    return [case.ours, *([case.theirs] if isinstance(case.theirs, Side) else [])]


def _other(case: Case, ran: dict[Side, Measured]) -> Measured | None:
    if isinstance(case.theirs, Side):
        return ran[case.theirs]
    return Measured(case.theirs) if isinstance(case.theirs, float | int) else None
