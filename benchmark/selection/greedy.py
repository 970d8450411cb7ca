"""CPU time and memory of facility location, compared with the libraries that maximise it.

    python -m benchmark.selection greedy [--repetitions 3] [--libraries apricot] [--report]

10,000 candidates of 128 normal values, float32, of which 1,000 are chosen by Euclidean distances; every side in processes of its own, one for each
repetition, in turn, on one thread. Sides: `ours` (`coresets.choices.craig`), `apricot` (apricot-select, its default optimizer for many samples,
two-stage), `submodlib` (submodlib-py, LazyGreedy). What a side needs to be ready, such as compiling, is done on few candidates before.
The objective of each side's choice, Σ max (d_max - d), is computed here from its positions in float64; ours must be within 1 % of the best one.
The last line is the CPU time of the fastest library, that of ours taken as 1, of the medians (goal: at least 2, with at most 0.3 GB).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmark.machine import busy_cores, spread, write_report
from benchmark.selection.sides import PEERS, normal, repetition, result_rows

LIBRARIES: Final = ("apricot", "submodlib")
WITHIN: Final = 0.99


def main() -> None:
    """Measure, and print the last line `greedy: R`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.selection greedy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--dimensions", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--peers-python", type=Path, default=PEERS, help="where the libraries are installed")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    if not options.peers_python.exists():
        parser.error(f"there is no {options.peers_python}: `make peers` makes one, or name one by --peers-python")
    busy = busy_cores()
    pythons = {"ours": sys.executable, **dict.fromkeys(options.libraries, str(options.peers_python))}
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in pythons}
    for _ in range(options.repetitions):
        for side, python in pythons.items():
            found[side].append(repetition(python, "facility", side, options.samples, options.dimensions))
            print(f"{side}: {found[side][-1]['cpu']:.2f} s", file=sys.stderr)
    values = objectives({side: runs[0]["positions"] for side, runs in found.items()}, options)
    if values["ours"] < WITHIN * max(values.values()):
        raise SystemExit(f"ours reaches {values['ours']:.0f}, less than {WITHIN:g} of {max(values.values()):.0f}")
    cpu = {side: statistics.median(run["cpu"] for run in runs) for side, runs in found.items()}
    fastest = min(options.libraries, key=lambda side: cpu[side])
    ratio = cpu[fastest] / cpu["ours"]
    extra = {side: f"{value:,.0f} ({value / max(values.values()):.5f})" for side, value in values.items()}
    lines = [
        f"{options.samples:,} × {options.dimensions} normal values, a tenth chosen by facility location of Euclidean distances; one thread each.",
        "",
        *result_rows(found, "objective (of the best)", extra),
        "",
        f"Ours against the fastest, {fastest}: **{ratio:.2f}**. Peak memory is of the whole process with its imports; before the choice ours has "
        f"{spread([run['base'] for run in found['ours']], 'GB')}. Cores that other programs kept busy just before: {busy:.1f}.",
    ]
    print("\n".join(lines))
    if options.report:
        command = f"python -m benchmark.selection greedy --repetitions {options.repetitions}"
        print(f"report: {write_report('selection-greedy', command, chr(10).join(lines))}")
    print(f"greedy: {ratio:.2f}")


def objectives(positions: dict[str, list[int]], options: argparse.Namespace) -> dict[str, float]:
    """Σ over all candidates of the largest distance of any two, less the distance to the nearest chosen one."""
    x = normal(options.samples, options.dimensions).astype(np.float64)
    squares = np.square(x).sum(1)
    largest, nearest = 0.0, {side: np.empty(len(x)) for side in positions}
    for first in range(0, len(x), 500):
        part = slice(first, first + 500)
        distances = np.sqrt(np.maximum(0, squares[part, None] + squares - 2 * x[part] @ x.T))
        largest = max(largest, float(distances.max()))
        for side, chosen in positions.items():
            nearest[side][part] = distances[:, chosen].min(1)
    return {side: len(x) * largest - float(found.sum()) for side, found in nearest.items()}
