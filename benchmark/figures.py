"""Measures all figures that benchmark/README.md quotes, on few samples, and names those that are worse than their report.

    python -m benchmark.figures [--report] [FIGURE ...]      (`make figures`)

Compared is with the newest report of this program (`--report` writes one), which measures the same sizes; without one, with the newest
report of the figure itself. What is worse by more than a fifth is measured again, and named if it is worse again; the exit status is then 1.
Needs an idle machine. Figures c and greedy, and DALI in figure d, are compared once `make peers` has installed them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmark.data_path import peers
from benchmark.machine import REPORTS, busy_cores, write_report
from benchmark.online import serve
from benchmark.selection import sides

TOLERANCE = 0.2
Values = dict[str, float]
"""Measured value by name of the case."""


@dataclass(frozen=True, slots=True)
class QuotedFigure:
    """A figure of benchmark/README.md.

    Args: module, arguments: the program that measures it, with few samples. title: of its reports. peers: the Python without which it is not
    measured."""

    module: str
    arguments: str
    title: str
    more_is_better: bool = True
    line: str = r"^\w\[(?P<case>.+)\]: (?P<value>\d+\.\d\d)(?: \(target [\d.]+\))?$"
    """Pattern of a value in the program's output."""
    row: str = r"^\| (?P<case>[^|]+) \| warm \|[^|]*\|[^|]*\| \*\*(?P<value>[\d.]+)\*\* "
    """Pattern of a value in its report."""
    peers: Path | None = None


def _data_path(letter: str, samples: int, pairs: int = 3) -> QuotedFigure:
    arguments = f"{letter} --warm --samples {samples} --pairs {pairs}"
    return QuotedFigure("benchmark.data_path", arguments, f"data-path-{letter}", peers=peers.PYTHON if letter == "c" else None)


def _selection(name: str, arguments: str, pattern: str, *, more_is_better: bool, peers: Path | None = None) -> QuotedFigure:
    """Make a figure whose output has the same lines as its report. Args: pattern: of a line, with the groups `case` and `value`."""
    title = "presample" if name == "presample" else f"selection-{name.replace('_', '-')}"
    return QuotedFigure("benchmark.selection", f"{name} {arguments}", title, more_is_better, pattern, pattern, peers)


def _cache(name: str, arguments: str, pattern: str) -> QuotedFigure:
    return QuotedFigure("benchmark.cache", f"{name} {arguments}", f"cache-{name}", True, pattern, pattern)


def _online(name: str, arguments: str, pattern: str, *, more_is_better: bool, peers: Path | None = None) -> QuotedFigure:
    return QuotedFigure("benchmark.online", f"{name} {arguments}", f"online-{name}", more_is_better, pattern, pattern, peers)


_TIMES = r"^\| (?P<case>[^|]+) \| [\d.]+ s \([^|]+\) \| (?P<value>[\d.]+) \|$"
"""Rows of seconds with their ratio."""
FIGURES: Mapping[str, QuotedFigure] = {
    "orchestration_overhead": QuotedFigure(
        "benchmark.orchestration_overhead", "--triggers 20 --epochs 2 --pairs 1", "orchestration-overhead", more_is_better=False,
        line=r"^(?P<case>ratio): (?P<value>[\d.]+)$", row=r"^median (?P<case>ratio): (?P<value>[\d.]+)$",
    ),
    "start_up": QuotedFigure(
        "benchmark.start_up", "--runs 3", "start-up", more_is_better=False,
        line=r"^(?P<case>s)econds: (?P<value>[\d.]+)$", row=r"of \d+: (?P<value>[\d.]+) (?P<case>s) ",
    ),
    "differences": QuotedFigure(
        "benchmark.differences", "--optimizer Adam", "differences", more_is_better=False,
        line=r"^\| (?P<case>\w+.*, zstd) \| [\d.]+ \| (?P<value>[\d.]+) ", row=r"^\| (?P<case>\w+.*, zstd) \| [\d.]+ \| (?P<value>[\d.]+) ",
    ),
    "a": _data_path("a", 1_000_000, pairs=2),
    "b": _data_path("b", 5_000_000),
    "c": _data_path("c", 1_000_000, pairs=2),
    "d": _data_path("d", 4_000, pairs=2),
    "e": _data_path("e", 5_000_000),
    "f": _data_path("f", 30_000),
    "g": _data_path("g", 2_000_000),
    "h": _data_path("h", 5_000_000),
    "i": _data_path("i", 2_000_000),
    "bts": _selection("bts", "--samples 1024", _TIMES, more_is_better=False),
    "rs2": _selection("rs2", "--samples 20000", _TIMES, more_is_better=False),
    "score": _selection(
        "score", "--samples 12000", r"^\| (?P<case>\w+) \| [^|]+ s \([^|]+\) \| [^|]+ s \([^|]+\) \| (?P<value>[\d.]+) \|$", more_is_better=True
    ),
    "greedy": _selection(
        "greedy", "--samples 4000", r"against the (?P<case>fastest), \w+: \*\*(?P<value>[\d.]+)\*\*", more_is_better=True, peers=sides.PEERS
    ),
    "k_center": _selection("k_center", "", r"^\*\*(?P<value>[\d.]+)\*\* (?P<case>times faster)", more_is_better=True),
    "many": _selection(
        "many", "--samples 500000", r"^\| (?P<case>\w+) \| [\d,]+ \|[^|]*\|[^|]*\| (?P<value>[\d.]+) GB \|$", more_is_better=False
    ),
    "jobs": _cache(
        "jobs", "--samples 600 --rounds 1 --epochs 1 --jobs 4 --shares 0.4 --sides plain static ours --seconds 10",
        r"^\| (?P<case>4 \| 40% \| ours) \| [^|]+ \| (?P<value>[\d.]+) \|$",
    ),
    "overhead": _cache(
        "overhead", "--samples 600 --rounds 1", r"^\| (?P<case>\w+ \| \d+%) \| [^|]+ s \| [^|]+ s \| (?P<value>[\d.]+) \|"
    ),
    "statistics": _online(
        "statistics", "--rows 20000 --rounds 3", r"^\| (?P<case>[\d,]+) \| [^|]+ \| [^|]+ \| [^|]+ \| \*\*(?P<value>[\d.]+)\*\* \|",
        more_is_better=True,
    ),
    "step": _online(
        "step", "--samples 100000 --rounds 1", r"^\| (?P<case>\w+) \| [\d.]+ \| [\d.]+ \| (?P<value>[\d.]+) \|", more_is_better=False
    ),
    "swap": _online(
        "swap", "--swaps 300", r"^\| (?P<case>a swap) \([^|]+ \| [\d.]+ / (?P<value>[\d.]+) \|$", more_is_better=False
    ),
    "rollback": _online(
        "rollback", "--rollbacks 20 --commands 1", r"^(?P<case>rollback): (?P<value>[\d.]+) s \(target", more_is_better=False
    ),
    "serve": _online(
        "serve", "--seconds 2 --rounds 1", r"^(?P<case>serve): (?P<value>[\d.]+) \(target", more_is_better=True, peers=serve.PYTHON
    ),
    "latency": _online(
        "latency", "--seconds 10 --rounds 1", r"^(?P<case>latency(?:, \w+)?): (?P<value>[\d.]+) \(target", more_is_better=False
    ),
    "presample": _selection("presample", "--samples 20000000", r"^- (?P<case>ratio)\b[^:]*: (?P<value>[\d.]+)", more_is_better=True),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"only these of {', '.join(FIGURES)}")
    parser.add_argument(
        "--report", action="store_true", help="write a dated report below benchmark/reports/: the next one to compare with"
    )
    options = parser.parse_args()
    if unknown := set(options.figures) - set(FIGURES):
        parser.error(f"there is no figure {', '.join(sorted(unknown))}; there are {', '.join(FIGURES)}")
    if (busy := busy_cores()) > 0.2:
        print(f"{busy:.1f} cores are busy with other work: what is named below may be due to it", flush=True)
    worse: list[str] = []
    measured: dict[str, Values] = {}
    for name in options.figures or FIGURES:
        if (python := FIGURES[name].peers) and not python.exists():
            print(f"{name}: not measured; make peers", flush=True)
            continue
        values, lines = check(name, FIGURES[name], *reported(name, FIGURES[name]))
        measured[name] = values
        worse += lines
    if options.report:
        print(f"report: {write_report('figures', 'python -m benchmark.figures --report', table(measured))}")
    print("\n".join(worse) if worse else "no figure is worse than its report by more than a fifth")
    return 1 if worse else 0


def check(name: str, figure: QuotedFigure, source: str, before: Values) -> tuple[Values, list[str]]:
    """Measure a figure. Returns its values, and a line for each value that is worse than in `before`, the values of the report `source`."""
    started = time.monotonic()
    values = measure(figure)
    if worse(figure, values, before):
        better = max if figure.more_is_better else min
        values = {case: better(value, values.get(case, value)) for case, value in measure(figure).items()}
    lines = [f"{name}: {line} ({source})" for line in worse(figure, values, before)]
    print(
        f"{name}: {len(values)} cases, {len(values.keys() & before.keys())} of them in {source}, {time.monotonic() - started:.0f} s",
        flush=True,
    )
    print(
        "".join(f"  {case}: {value:g}, was {before.get(case, 'not measured')}\n" for case, value in values.items()),
        end="",
        flush=True,
    )
    if not values:
        lines.append(f"{name}: nothing was measured")
    return values, lines


def measure(figure: QuotedFigure) -> Values:
    """Run its program. Raises SystemExit with the end of its output if it fails."""
    command = [sys.executable, "-m", figure.module, *figure.arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command[1:])} failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    return _values(figure.line, done.stdout)


def reported(name: str, figure: QuotedFigure, folder: Path = REPORTS) -> tuple[str, Values]:
    """Return the names of the newest reports, and their values. A report on some cases, such as `…-c-torch`, overrides the report on all."""
    own = sorted(folder.glob("????-??-??-figures.md"), reverse=True)
    for path in own:
        if found := _values(rf"^\| {name} \| (?P<case>.+) \| (?P<value>[\d.]+) \|$", path.read_text()):
            return path.name, found
    paths = [path for path in folder.glob("*.md") if re.fullmatch(rf"[\d-]{{10}}-{figure.title}(-[a-z-]+)?\.md", path.name)]
    paths.sort(key=lambda path: (path.name[:10], len(path.name)))
    values: Values = {}
    for path in paths:
        values |= _values(figure.row, path.read_text())
    return ", ".join(path.name for path in paths) or "no report", values


def worse(figure: QuotedFigure, values: Values, before: Values) -> list[str]:
    """Return a line for each case that is worse than before by more than `TOLERANCE`."""
    bound = 1 - TOLERANCE if figure.more_is_better else 1 + TOLERANCE
    sign = 1 if figure.more_is_better else -1
    return [
        f"{case}: {values[case]:g}, was {before[case]:g}"
        for case in values.keys() & before.keys()
        if sign * values[case] < sign * bound * before[case]
    ]


def table(measured: Mapping[str, Values]) -> str:
    commands = "\n".join(f"- {name}: `python -m {FIGURES[name].module} {FIGURES[name].arguments}`" for name in measured)
    rows = "\n".join(f"| {name} | {case} | {value:g} |" for name, values in measured.items() for case, value in values.items())
    return (
        f"Few samples, to compare with later; not to be quoted.\n\n{commands}\n\n| figure | case | value |\n|---|---|---|\n{rows}"
    )


def _values(pattern: str, text: str) -> Values:
    """Remove the numbers of samples from the name of a case: they differ between a small and a full figure."""
    found = re.finditer(pattern, text, re.MULTILINE)
    return {re.sub(r", [\d,]+ samples", "", match["case"]).strip(): float(match["value"]) for match in found}


if __name__ == "__main__":
    sys.exit(main())
