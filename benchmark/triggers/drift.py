"""CPU time of our MMD, compared with that of alibi-detect (torch).

    python -m benchmark.triggers drift [--repetitions 5] [--permuted 1] [--threads 1] [--report]

5,000 samples of 512 values against 5,000 others, float32, both sides in a process of their own, in turn; both results must be equal. Cases:
`given`: the detector with a bandwidth; `median`: bandwidth by the median distance of the reference, as both do by default; `function`: the bare
function `mmd2` of the library, which holds no detector and is its least way; `permutations`: `given`, with a p-value of 100 permutations.
The last line is the ratio of CPU times of `given`, the medians (goal: at least 3); those of all cases stand above it (permutations: 15).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from benchmark.machine import busy_cores, spread, write_report

ROOT: Final = Path(__file__).parents[2]
ALIBI_PYTHON: Final = ROOT / ".venv-alibi" / "bin" / "python"
TOLERANCE: Final = 5e-6
"""Largest difference of two distances. Both sum float32 kernels near 1, in a different order, and ours centres the samples first."""

Result = dict[str, Any]


class Side:
    """Process of one side, drift_side.py."""

    def __init__(self, python: str, *arguments: object) -> None:
        command = [python, "-W", "ignore", "-m", "benchmark.triggers.drift_side", *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.cases: list[str] = self._answer()

    def run(self, case: str) -> Result:
        """One repetition. Returns: distance, p_value, cpu and seconds."""
        assert self._process.stdin is not None
        print(case, file=self._process.stdin, flush=True)
        return dict(self._answer())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a side ended with status {self._process.wait()}; what it said stands above")
        return json.loads(line)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.triggers drift", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--dimensions", type=int, default=512)
    parser.add_argument("--permutations", type=int, default=100)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--permuted", type=int, default=1, help="repetitions with permutations, of which one of the library takes minutes"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of torch, for each side")
    parser.add_argument("--alibi-python", type=Path, default=ALIBI_PYTHON, help="where alibi-detect is installed")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    if not options.alibi_python.exists():
        parser.error(
            f"there is no {options.alibi_python}: `make .venv-alibi/.installed` makes one, or name one by --alibi-python"
        )
    busy = busy_cores()
    results = measure(options)
    lines = [
        f"{options.samples:,} × {options.dimensions} against the same, torch threads: {options.threads}; CPU seconds, median and range.",
        "",
        "| case | repetitions | ours | alibi-detect | ratio | distance ours, theirs | p-value |",
        "|---|---|---|---|---|---|---|",
        *(row(case, *sides) for case, sides in results.items()),
        "",
        f"Cores that other programs kept busy just before: {busy:.1f}.",
    ]
    print("\n".join(lines))
    if options.report:
        command = f"python -m benchmark.triggers drift --repetitions {options.repetitions} --permuted {options.permuted}"
        print(f"report: {write_report('triggers-drift', command, chr(10).join(lines))}")
    for case, sides in results.items():
        print(f"drift[{case}]: {ratio(*sides):.2f}")
    print(f"drift: {ratio(*results['given']):.2f}")


def measure(options: argparse.Namespace) -> dict[str, tuple[list[Result], list[Result]]]:
    """Results of ours and of the library, by case; in turn, after one repetition of each that does not count."""
    size = (options.samples, options.dimensions, options.threads, options.permutations)
    sides = (Side(sys.executable, "ours", *size), Side(str(options.alibi_python), "alibi", *size))
    results: dict[str, tuple[list[Result], list[Result]]] = {case: ([], []) for case in sides[0].cases}
    for side in sides:
        side.run("given")
    for case, found in results.items():
        for _ in range(options.permuted if case == "permutations" else options.repetitions):
            for side, list_ in zip(sides, found, strict=True):
                list_.append(side.run(case))
            check(case, *(list_[-1] for list_ in found))
            print(f"{case}: {found[0][-1]['cpu']:.2f} s, {found[1][-1]['cpu']:.2f} s", file=sys.stderr)
    for side in sides:
        side.close()
    return results


def check(case: str, mine: Result, theirs: Result) -> None:
    """Raises SystemExit: the distances differ, or the p-values, as far as draws of permutations may let them."""
    if abs(mine["distance"] - theirs["distance"]) > TOLERANCE:
        raise SystemExit(f"{case}: the distances {mine['distance']} and {theirs['distance']} differ by more than {TOLERANCE}")
    if mine["p_value"] is not None and abs(mine["p_value"] - theirs["p_value"]) > 0.2:
        raise SystemExit(f"{case}: the p-values {mine['p_value']} and {theirs['p_value']} differ")


def ratio(mine: list[Result], theirs: list[Result]) -> float:
    ours, library = (statistics.median(float(r["cpu"]) for r in side) for side in (mine, theirs))
    return library / ours


def row(case: str, mine: list[Result], theirs: list[Result]) -> str:
    p_values = ", ".join("none" if r[0]["p_value"] is None else f"{r[0]['p_value']:.3f}" for r in (mine, theirs))
    distances = ", ".join(f"{r[0]['distance']:.7f}" for r in (mine, theirs))
    times = " | ".join(spread([r["cpu"] for r in side]) for side in (mine, theirs))
    return f"| {case} | {len(mine)} | {times} | **{ratio(mine, theirs):.2f}** | {distances} | {p_values} |"
