"""Comparison of two checkouts of Modyn on figures of the data path: is a change slower than the version before?

    git worktree add ../before COMMIT && make -C ../before setup
    python -m benchmark.checkouts ../before a b --pairs 10 [--samples 1000000] [--only TEXT] [--report]

Both checkouts prepare a figure, each with its own files, services and processes. Then one run of ours in the one and one in the other follow each
other, in turn first and last, so that what else the machine does meets both alike. The other side of the figure does not run. Each case ends with
the median ratio of the pairs, this checkout by the other one; more than 1 is better here.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmark.data_path.figure import Setting, letters, load
from benchmark.machine import busy_cores, write_report

ROOT = Path(__file__).parents[1]
LEAST = 0.95
"""A case with a smaller ratio is reported as slower."""


def main() -> int:
    if sys.argv[1:2] == ["--serve"]:
        _serve(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="folder of the other checkout, which has a .venv of its own")
    parser.add_argument("figures", nargs="+", choices=letters(), metavar="FIGURE", help="letters, see benchmark.data_path --help")
    parser.add_argument("--samples", type=int, help="number of samples, in place of each figure's own")
    parser.add_argument("--pairs", type=int, default=10, help="number of runs of each checkout (default: 10)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose names contain this text")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    other = options.other.resolve()
    if not (other / ".venv/bin/python").exists():
        parser.error(f"{other} has no .venv/bin/python; run: make -C {other} setup")
    busy = busy_cores()
    rows: list[str] = []
    slower: list[str] = []
    for letter in options.figures:
        for name, ratios in compare(letter, other, options.samples or load(letter).samples, options.pairs, options.only):
            median = statistics.median(ratios)
            rows.append(f"| {letter}[{name}] | {median:.2f} | {min(ratios):.2f} to {max(ratios):.2f} |")
            slower += [f"{letter}[{name}]: {median:.2f}"] if median < LEAST else []
            print(f"{letter}[{name}]: {median:.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)
    if options.report:
        body = (
            f"This checkout, {_commit(ROOT)}, by the other one, {_commit(other)}: median of {options.pairs} pairs, warm, more than 1 is better; "
            f"{busy:.1f} cores were busy with other work.\n\n| figure | median | pairs |\n|---|---|---|\n" + "\n".join(rows)
        )
        arguments = shlex.join(["OTHER", *sys.argv[2:]])
        print(f"report: {write_report('checkouts', f'python -m benchmark.checkouts {arguments}', body)}")
    print("\n".join(["slower:", *slower]) if slower else f"no case is below {LEAST}")
    return 1 if slower else 0


def compare(letter: str, other: Path, samples: int, pairs: int, only: str) -> Iterator[tuple[str, list[float]]]:
    """Return the ratios of the pairs, this checkout divided by the other, for each case that both checkouts have."""
    figure = load(letter)
    with ExitStack() as stack:
        here, there = (stack.enter_context(_served(root, letter, samples)) for root in (ROOT, other))
        for name in [name for name in here.cases if name in there.cases and only in name]:
            ratios = []
            for number in range(pairs + 1):
                values = {side: side.run(name) for side in ((here, there) if number % 2 else (there, here))}
                ratio = values[here] / values[there] if figure.more_is_better else values[there] / values[here]
                if number:  # the first run of a side starts what later ones find running
                    ratios.append(ratio)
            yield name, ratios


class _Served:
    """Process of a checkout that has prepared a figure."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self._name = name
        self._process = process
        self.cases: list[str] = self._answer()

    def run(self, case: str) -> float:
        """Run our side once and return its value, in the figure's unit."""
        assert self._process.stdin is not None
        print(case, file=self._process.stdin, flush=True)
        return float(self._answer())

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@"):
                return json.loads(line.removeprefix("@"))
        raise SystemExit(f"{self._name} ended early; its error stands above")


@contextmanager
def _served(root: Path, letter: str, samples: int) -> Iterator[_Served]:
    with tempfile.TemporaryDirectory(prefix="modyn-checkout-") as folder:
        command = [str(root / ".venv/bin/python"), __file__, "--serve", letter, str(samples), folder]
        # This file itself also serves in a checkout that is older than it; all that it imports is the checkout's own.
        process = subprocess.Popen(
            command, cwd=root, env=_environment(root), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with process:
            yield _Served(f"figure {letter} in {root}", process)
            assert process.stdin is not None
            process.stdin.close()


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root)}


def _serve(letter: str, samples: int, folder: Path) -> None:
    """Prepare a figure, answer with the names of its cases, then run ours once for each name that is read, until input ends."""
    figure = load(letter)
    with figure.prepare(Setting(folder, samples, 1)) as cases:
        ours = {case.name: case.ours for case in cases}
        print("@" + json.dumps(list(ours)), flush=True)
        for line in sys.stdin:
            print(f"@{ours[line.rstrip()].run(lambda: None).value}", flush=True)


def _commit(root: Path) -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
