"""Runs the sides of all cases in turn, round by round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmark.data_path import page_cache
from benchmark.data_path.figure import Case, Figure, Measured, Missing, Result, Side


def run_rounds(figure: Figure, cases: Sequence[Case], pairs: int, *, cold: bool, tell: Callable[[str], None]) -> list[Result]:
    """`pairs` rounds over the cases that can be measured, after one that is not counted, which warms caches and finds mistakes early.

    In every second round each case runs the other side first.
    """
    results = [Result(case, cold) for case in cases if not isinstance(case.theirs, Missing) and (case.cold or not cold)]
    for number in range(0 if not cold else 1, pairs + 1):
        ran: dict[Side, Measured] = {}
        for result in results:
            case = result.case
            sides = [case.ours, *([case.theirs] if isinstance(case.theirs, Side) else [])]
            for side in sides if number % 2 else reversed(sides):
                if side not in ran:
                    ran[side] = _run_cold(side, case.data) if cold else side.run(_nothing)
            if number == 0:
                result.warming.update({"ours" if side is case.ours else "theirs": ran[side] for side in sides})
                continue
            ours = ran[case.ours]
            result.ours.append(ours)
            line = f"{'cold ' if cold else ''}round {number}, {case.name}: ours {ours.value:,.5g} {figure.unit}"
            theirs = _other(case, ran)
            if theirs is not None:
                result.theirs.append(theirs)
                ratio = ours.value / theirs.value if figure.more_is_better else theirs.value / ours.value
                result.ratios.append(ratio)
                line += f", theirs {theirs.value:,.5g}, ratio {ratio:.2f}"
            tell(line)
    return results


def _run_cold(side: Side, data: Sequence[Path]) -> Measured:
    """Tells with the rest how much of the data could not be dropped, because a process has it mapped."""
    left: list[float] = []
    measured = side.run(lambda: left.append(page_cache.drop(data)))
    return Measured(measured.value, {**measured.details, "data still in memory at the start, %": 100 * left[0]})


def _nothing() -> None:
    """Everything is in the page cache already."""


def _other(case: Case, ran: dict[Side, Measured]) -> Measured | None:
    if isinstance(case.theirs, Side):
        return ran[case.theirs]
    return Measured(case.theirs) if isinstance(case.theirs, float | int) else None
