"""Samples a second of trainings that run at the same time over JPEG files of about 100 KB, for each side.

    python -m benchmark.cache jobs [--samples 20000] [--rounds 3] [--jobs 1 2 4 8] [--shares 0.2 0.4 0.8] [--sides plain static] [--report]
    python -m benchmark.cache jobs --samples 400 --rounds 1 --jobs 2 --shares 0.4                     (in a minute)

Each training is a process with one worker, which decodes and resizes (what a cache may keep) and crops and mirrors at random. All begin at once;
the first epoch of each is not counted, in which caches fill, and counted is the time in which all of them run. Each round measures all sides in
turn, in the other order in every second one. Ours divides the cache as the model says for a profile, which is measured first. The last line gives
ours against plain for 4 trainings and a cache for 40 % of the decoded bytes (goal: at least 2.5, and 1.8 times the best of the others).
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Mapping, Sequence

from benchmark.cache.arrivals import together
from benchmark.cache.profiled import profiled
from benchmark.cache.reading import Images, command, images
from benchmark.cache.sides import OURS, PLAIN, SIDES, Side, open_side
from benchmark.cache.training_processes import Training, TrainingProcesses
from benchmark.line_chart import line_chart
from benchmark.machine import REPORTS, busy_cores, dated, write_report
from modyn.cache.plan.profile import CacheProfile

NAME = "cache-jobs"
WORKERS = os.cpu_count() or 1
"""Workers of the profile: one for each core of the machine, which trainings share."""
GOAL_JOBS, GOAL_SHARE = 4, 0.4
Rates = Mapping[tuple[int, float, str], Sequence[float]]
"""Samples/s of each round, by jobs, share and side."""


def main() -> None:
    """Measure, and print the last line `jobs: 2.1`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.cache jobs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=2, help="epochs of each training, after the first one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument(
        "--shares", type=float, nargs="+", default=[0.2, 0.4, 0.8], help="shares of the decoded bytes that the cache holds"
    )
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--store", choices=("memory", "redis"), default="memory")
    parser.add_argument(
        "--workers", type=int, default=1, help="workers of each training: one is a thread of it, more are processes"
    )
    parser.add_argument("--accelerator", type=float, default=float("inf"), help="samples/s that each training could train on")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="seconds for the profile that our side is planned with; 0: no profile"
    )
    parser.add_argument("--report", action="store_true", help="write a dated report with a picture below benchmark/reports/")
    options = parser.parse_args()
    busy = busy_cores()
    with images(options.samples) as found:
        profile = profiled(found, options.store, options.seconds, WORKERS) if options.seconds and OURS in options.sides else None
        rates = measure(found, profile, options)
        size = f"{options.samples:,} files of {found.mean_bytes / 1000:.0f} KB"
    body = (
        f"{size}, decoded and resized to 192 KB each, {options.epochs} epochs after one that is not counted; store: {options.store}; medians of "
        f"{options.rounds} rounds (least and most), in samples/s of all trainings together. "
        f"Cores that other programs kept busy just before: {busy:.1f}.\n\n{table(rates)}"
    )
    print(body)
    if options.report:
        for share in options.shares:
            lines = {side: _line(rates, share, side) for side in options.sides}
            title = f"Trainings at once, cache for {share:.0%}"
            path = REPORTS / f"{dated(f'{NAME}-{100 * share:.0f}')}.svg"
            path.write_text(line_chart(title, ("trainings", "samples/s of all"), lines))
            body += f"\n\n![{title}]({path.name})"
        print(f"report: {write_report(NAME, command('jobs', options), body)}")
    print(last_line(rates))


def measure(found: Images, profile: CacheProfile | None, options: argparse.Namespace) -> Rates:
    """Measure all rounds of all settings. The side `plain` does not depend on the size of the cache, so it is measured once per round."""
    rates: dict[tuple[int, float, str], list[float]] = {}
    for jobs in options.jobs:
        with TrainingProcesses(jobs) as processes:
            for number in range(options.rounds):
                plain: float | None = None
                for share in options.shares:
                    for name in options.sides[:: -1 if number % 2 else 1]:
                        if name == PLAIN and plain is not None:
                            rate = plain
                        else:
                            side = open_side(name, found, share, options.store, jobs, profile)
                            rate, hits = _rate(processes, side, jobs, number, options)
                            print(
                                f"{jobs} jobs, cache for {share:.0%}, {_described(side)}: {rate:,.0f} samples/s, {hits:.0%} from the cache",
                                flush=True,
                            )
                        if name == PLAIN:
                            plain = rate
                        rates.setdefault((jobs, share, name), []).append(rate)
    return rates


def _rate(processes: TrainingProcesses, side: Side, jobs: int, number: int, options: argparse.Namespace) -> tuple[float, float]:
    """Return samples/s of all trainings, and the share of samples from the cache."""
    trainings = [
        Training(side, 1 + options.epochs, 100 * number + job, options.accelerator, options.workers) for job in range(jobs)
    ]
    arrivals = processes.read(trainings)
    return together(arrivals, warm_up=options.samples), statistics.mean(job.hits for job in arrivals)


def _described(side: Side) -> str:
    """Its name, and what share of the memory each tier has."""
    cache = side.source.cache
    budgets = {} if cache is None else {name: place.budget_bytes for name, place in cache.places.items()}
    parts = ", ".join(f"{budget / sum(budgets.values()):.0%} {name}" for name, budget in budgets.items())
    return f"{side.name} ({parts})" if parts else side.name


def table(rates: Rates) -> str:
    """Return a row for each setting and side."""
    head = "| trainings | cache for | side | samples/s | times plain |\n|---|---|---|---|---|"
    rows = []
    for (jobs, share, name), found in rates.items():
        plain = rates.get((jobs, share, PLAIN))
        times = f"{statistics.median(found) / statistics.median(plain):.2f}" if plain else "–"
        rows.append(f"| {jobs} | {share:.0%} | {name} | {_rounds(found)} | {times} |")
    return "\n".join([head, *rows])


def last_line(rates: Rates) -> str:
    """`jobs: 2.1, 1.9 times the best of the others`; `jobs: incomplete` if one of these sides was not measured.

    >>> last_line({(4, 0.4, "ours"): [30.0], (4, 0.4, "plain"): [10.0], (4, 0.4, "static"): [15.0]})
    'jobs: 3.00, 2.00 times the best of the others'
    """
    at = {
        name: statistics.median(found) for (jobs, share, name), found in rates.items() if (jobs, share) == (GOAL_JOBS, GOAL_SHARE)
    }
    if OURS not in at or PLAIN not in at:
        return "jobs: incomplete"
    best = max(rate for name, rate in at.items() if name != OURS)
    return f"jobs: {at[OURS] / at[PLAIN]:.2f}, {at[OURS] / best:.2f} times the best of the others"


def _rounds(found: Sequence[float]) -> str:
    return f"{statistics.median(found):,.0f} ({min(found):,.0f}–{max(found):,.0f})"


def _line(rates: Rates, share: float, side: str) -> list[tuple[float, float]]:
    return [(jobs, statistics.median(found)) for (jobs, at, name), found in rates.items() if (at, name) == (share, side)]
