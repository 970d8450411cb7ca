"""CPU time of k-center, compared with the way of DeepCore.

    python -m benchmark.selection k_center [--repetitions 5] [--report]

10,000 candidates of 128 normal values, float32, of which 1,000 are chosen; both sides in processes of their own, one for each repetition, in turn,
on one thread of NumPy or torch. DeepCore (PatrickZH/DeepCore, deepcore/methods/kcentergreedy.py) cannot be installed; the comparison side,
`deepcore_like` in sides.py, is our own code with the same steps, not a copy: for each center it takes the rows that are not chosen out of the
matrix, the distances to these by the expansion of squares, with the squares of the rows computed again, writes them into one row of a matrix of
centers × candidates, and takes the minimum with the row before. The radius of ours must be at most 1 % larger; the first center differs.
The last line is the CPU time of that side, ours taken as 1, of the medians (goal: at least 10).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

import numpy as np

from benchmark.machine import busy_cores, write_report
from benchmark.selection.sides import normal, repetition, result_rows


def main() -> None:
    """Measure, and print the last line `k_center: R`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.selection k_center", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--dimensions", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    busy = busy_cores()
    found: dict[str, list[dict[str, Any]]] = {"ours": [], "deepcore_like": []}
    for _ in range(options.repetitions):
        for side, runs in found.items():
            runs.append(repetition(sys.executable, "centers", side, options.samples, options.dimensions))
            print(f"{side}: {runs[-1]['cpu']:.3f} s", file=sys.stderr)
    x = normal(options.samples, options.dimensions)
    radii = {side: radius(x, runs[0]["positions"]) for side, runs in found.items()}
    if radii["ours"] > 1.01 * radii["deepcore_like"]:
        raise SystemExit(f"the radius of ours is {radii['ours']:.4f}, of the other side {radii['deepcore_like']:.4f}")
    mine, theirs = (statistics.median(run["cpu"] for run in runs) for runs in found.values())
    lines = [
        f"{options.samples:,} × {options.dimensions} normal values, a tenth chosen; one thread each. `deepcore_like` is our own code with the steps "
        "of DeepCore's `k_center_greedy`, see the program.",
        "",
        *result_rows(found, "radius", {side: f"{value:.4f}" for side, value in radii.items()}),
        "",
        f"**{theirs / mine:.1f}** times faster. Cores that other programs kept busy just before: {busy:.1f}.",
    ]
    print("\n".join(lines))
    if options.report:
        command = f"python -m benchmark.selection k_center --repetitions {options.repetitions}"
        print(f"report: {write_report('selection-k-center', command, chr(10).join(lines))}")
    print(f"k_center: {theirs / mine:.2f}")


def radius(x: np.ndarray[Any, np.dtype[np.float32]], chosen: list[int]) -> float:
    """The largest distance from a row to its nearest chosen one."""
    found = 0.0
    centers = x[chosen].astype(np.float64)
    for first in range(0, len(x), 500):
        part = x[first : first + 500].astype(np.float64)
        squares = np.square(part).sum(1)[:, None] + np.square(centers).sum(1) - 2 * part @ centers.T
        found = max(found, float(squares.min(1).max()))
    return float(np.sqrt(found))
