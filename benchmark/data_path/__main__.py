"""Measures one figure of the data path: ours and the other side in turn, and the median ratio as the last line.

    python -m benchmark.data_path a                      five pairs (k: three), page cache warm, then cold
    python -m benchmark.data_path a --warm --report      warm only, with a dated report below benchmark/reports/
    python -m benchmark.data_path c --samples 100000     few samples: to see that it runs, not to quote

At least the target is wanted of every ratio. Each case has a line; the last line is the ratio of the case that is worst off
against its target, warm or cold, which the line before it names, or says that the figure is incomplete. Figures c and d compare
with other libraries, which live in an environment of their own: `make peers`.
"""

from __future__ import annotations

import argparse
import re
import shlex
import tempfile
from pathlib import Path

from benchmark.data_path.figure import Figure, Result, Setting, letters, load
from benchmark.data_path.report import body, case_lines, last_line, named
from benchmark.data_path.rounds import run_rounds
from benchmark.machine import busy_cores, write_report


def main() -> None:
    figures = {letter: load(letter) for letter in letters()}
    listed = "\n".join(f"  {letter}  {figure.title} ({figure.samples:,} samples)" for letter, figure in figures.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.data_path",
        description=__doc__,
        epilog=f"figures:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("figure", choices=figures, metavar="FIGURE", help="one letter, see below")
    parser.add_argument("--samples", type=int, help="number of samples, in place of the figure's own")
    parser.add_argument("--pairs", type=int, help="number of runs of each side, in turn (default: the figure's own)")
    cache = parser.add_mutually_exclusive_group()
    cache.add_argument("--warm", action="store_true", help="only with the data in the page cache")
    cache.add_argument("--cold", action="store_true", help="only with the data out of the page cache")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose names contain this text")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    parser.add_argument("--folder", type=Path, help="make the data below this folder, e.g. on another disk (default: TMPDIR)")
    options = parser.parse_args()
    if any(number is not None and number < 1 for number in (options.pairs, options.samples)):
        parser.error("--pairs and --samples are at least 1")
    figure = figures[options.figure]
    caches = [False] if options.warm else [True] if options.cold else [False, True]
    samples, pairs = options.samples or figure.samples, options.pairs or figure.pairs
    measure(figure, samples, pairs, caches, folder=options.folder, report=options.report, only=options.only)


def measure(
    figure: Figure,
    samples: int,
    pairs: int,
    caches: list[bool],
    *,
    folder: Path | None = None,
    report: bool = False,
    only: str = "",
) -> list[str]:
    """Run a figure and print its progress. Returns the lines of the cases and the last line. Args: caches: for each pass, whether it is cold."""
    busy = busy_cores()
    with tempfile.TemporaryDirectory(prefix=f"modyn-figure-{figure.letter}-", dir=folder) as name:
        print(f"{figure.letter}. {figure.title}: {samples:,} samples, {pairs} pairs", flush=True)
        with figure.prepare(Setting(Path(name), samples, pairs)) as all_cases:
            cases = [case for case in all_cases if only in case.name]
            if not cases:
                names = "\n".join(case.name for case in all_cases)
                raise SystemExit(f"no case of figure {figure.letter} has a name with '{only}' in it; its cases are\n{names}")
            results: list[Result] = []
            for cold in caches:
                results += run_rounds(
                    figure, cases, pairs, cold=cold, uncounted=cold == caches[0], log=lambda line: print(line, flush=True)
                )
    lines = [*case_lines(figure, cases, results), *named(cases, results), last_line(figure, cases, results)]
    if report:
        title = "-".join(["data-path", figure.letter, *re.findall("[a-z0-9]+", only.lower())])
        text = body(figure, cases, results, samples, busy)
        if figure.conclude is not None:
            text += "\n\n" + figure.conclude(results, title)
        chosen = "" if len(caches) == 2 else " --cold" if caches[0] else " --warm"
        chosen += f" --only {shlex.quote(only)}" if only else ""
        command = f"python -m benchmark.data_path {figure.letter} --samples {samples} --pairs {pairs}{chosen}"
        print(f"report: {write_report(title, command, text)}")
    print("\n".join(lines), flush=True)
    return lines


if __name__ == "__main__":
    main()
