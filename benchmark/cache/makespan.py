"""Total time of twelve trainings that arrive over time, for each side. At most two trainings run at once.

    python -m benchmark.cache makespan [--samples 4000] [--epochs 5] [--rounds 1] [--sides plain static] [--report]
    python -m benchmark.cache makespan --samples 200 --epochs 2 --trainings 4 --gap 2                 (in a minute)

The schedule of the paper in small (Seneca, FAST 2026, figure 10): a mix of five models, each training over all samples of one dataset for the same
number of epochs, arriving at random times. Files are JPEGs of about 100 KB, decoded and resized (what a cache may keep), and cropped and mirrored
at random. For the accelerator, which this machine lacks, a training pauses after each batch as long as its model would take. The last line gives
the time of ours as a part of that of plain (paper: 0.55, from 45.23 % less).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple

import numpy as np

from benchmark.cache.arrivals import Arrivals
from benchmark.cache.profiled import profiled
from benchmark.cache.reading import command, images
from benchmark.cache.sides import OURS, PLAIN, SIDES, Side, open_side
from benchmark.cache.training_processes import Training, TrainingProcesses, read
from benchmark.line_chart import Line, line_chart
from benchmark.machine import REPORTS, busy_cores, dated, write_report

NAME = "cache-makespan"
AT_ONCE: Final = 2
MODELS: Final = {"large": 400.0, "medium": 800.0, "small": 1600.0, "smaller": 3200.0, "smallest": 6400.0}
"""Samples/s that an accelerator would train."""


class Schedule(NamedTuple):
    """Arrival times and models of trainings, in order of arrival."""

    starts_s: Sequence[float]
    models: Sequence[str]

    @staticmethod
    def drawn(number: int, gap_s: float, seed: int) -> Schedule:
        """Times between arrivals are exponential, of `gap_s` on average; the first arrives at 0. Models are about equally frequent."""
        generator = np.random.default_rng(seed)
        starts = np.cumsum([0.0, *generator.exponential(gap_s, number - 1)])
        names = list(MODELS)
        models = [names[i % len(names)] for i in range(number)]
        return Schedule([float(start) for start in starts], [models[i] for i in generator.permutation(number)])


class Run(NamedTuple):
    """Training of a schedule, in seconds after the first arrival."""

    model: str
    arrived_s: float
    began_s: float
    ended_s: float


def main() -> None:
    """Measure, and print the last line `makespan: 0.52`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.cache makespan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=5, help="epochs of each training")
    parser.add_argument("--trainings", type=int, default=12)
    parser.add_argument("--gap", type=float, default=20.0, help="mean seconds between arrivals")
    parser.add_argument("--share", type=float, default=0.4, help="share of the decoded bytes that the cache holds")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--store", choices=("memory", "redis"), default="memory")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="seconds for the profile that our side is planned with; 0: no profile"
    )
    parser.add_argument("--report", action="store_true", help="write a dated report with a picture below benchmark/reports/")
    options = parser.parse_args()
    busy = busy_cores()
    schedule = Schedule.drawn(options.trainings, options.gap, seed=0)
    runs: dict[str, list[list[Run]]] = {name: [] for name in options.sides}
    with images(options.samples) as found, TrainingProcesses(AT_ONCE) as processes:
        profile = profiled(found, options.store, options.seconds, AT_ONCE) if options.seconds and OURS in options.sides else None
        for number in range(options.rounds):
            for name in options.sides[:: -1 if number % 2 else 1]:
                side = open_side(name, found, options.share, options.store, AT_ONCE, profile)
                runs[name].append(carry_out(schedule, side, options.epochs, processes))
                print(f"{name}: {makespan(runs[name][-1]):.1f} s", flush=True)
        size = f"{options.samples:,} files of {found.mean_bytes / 1000:.0f} KB"
    spans = {name: statistics.median(map(makespan, rounds)) for name, rounds in runs.items()}
    body = (
        f"{size}, {options.trainings} trainings of {options.epochs} epochs, {AT_ONCE} at once, a mean of {options.gap:g} s between arrivals, "
        f"cache for {options.share:.0%} of the samples decoded; store: {options.store}; medians of {options.rounds} rounds. "
        f"Cores that other programs kept busy just before: {busy:.1f}.\n\n{summary(runs)}\n\nThe trainings of the first round:\n\n{table(runs)}"
    )
    print(body)
    if options.report:
        lines = {name: finished(rounds[0]) for name, rounds in runs.items()}
        path = REPORTS / f"{dated(NAME)}.svg"
        path.write_text(line_chart("Trainings that have ended", ("s after the first arrival", "trainings"), lines))
        body += f"\n\n![Trainings that have ended]({path.name})"
        print(f"report: {write_report(NAME, command('makespan', options), body)}")
    print(f"makespan: {spans[OURS] / spans[PLAIN]:.2f}" if {OURS, PLAIN} <= spans.keys() else "makespan: incomplete")


def carry_out(schedule: Schedule, side: Side, epochs: int, processes: TrainingProcesses) -> list[Run]:
    """Start each training when it has arrived and a process is free, and wait until all trainings have ended."""
    began = time.monotonic()
    waiting: list[Future[tuple[float, Arrivals]]] = []
    for number, (start_s, model) in enumerate(zip(*schedule, strict=True)):
        time.sleep(max(0.0, began + start_s - time.monotonic()))
        waiting.append(processes.submit(_timed, Training(side, epochs, number, MODELS[model])))
    runs = []
    for start_s, model, future in zip(*schedule, waiting, strict=True):
        started, arrivals = future.result()
        runs.append(Run(model, start_s, started - began, float(arrivals.times[-1]) - began))
    return runs


def _timed(training: Training) -> tuple[float, Arrivals]:
    """Return the start time of the training, and its batches."""
    started = time.monotonic()
    return started, read(training)


def makespan(runs: Sequence[Run]) -> float:
    """Seconds from the first arrival until the last training has ended.

    >>> makespan([Run("small", 0.0, 0.0, 9.0), Run("small", 3.0, 3.0, 7.0)])
    9.0
    """
    return max(run.ended_s for run in runs) - min(run.arrived_s for run in runs)


def finished(runs: Sequence[Run]) -> Line:
    """Return the number of ended trainings over time, as a staircase.

    >>> finished([Run("small", 0.0, 0.0, 9.0), Run("small", 3.0, 3.0, 7.0)])
    [(0.0, 0), (7.0, 0), (7.0, 1), (9.0, 1), (9.0, 2)]
    """
    points: list[tuple[float, float]] = [(0.0, 0)]
    for number, end in enumerate(sorted(run.ended_s for run in runs)):
        points += [(end, number), (end, number + 1)]
    return points


def summary(runs: Mapping[str, Sequence[Sequence[Run]]]) -> str:
    """Return a row for each side."""
    rows = []
    for name, rounds in runs.items():
        spans = [makespan(found) for found in rounds]
        alone = statistics.median(statistics.mean(run.ended_s - run.began_s for run in found) for found in rounds)
        rows.append(f"| {name} | {statistics.median(spans):.1f} ({min(spans):.1f}–{max(spans):.1f}) | {alone:.1f} |")
    return "\n".join(["| side | until all had ended, s | mean of a training, s |", "|---|---|---|", *rows])


def table(runs: Mapping[str, Sequence[Sequence[Run]]]) -> str:
    """Return a row for each training."""
    rows = []
    for number, training in enumerate(zip(*(rounds[0] for rounds in runs.values()), strict=True)):
        times = " | ".join(f"{run.began_s:.1f} – {run.ended_s:.1f}" for run in training)
        rows.append(f"| {number + 1} | {training[0].model} | {training[0].arrived_s:.1f} | {times} |")
    return "\n".join([f"| | model | arrived, s | {' | '.join(runs)} |", "|---" * (3 + len(runs)) + "|", *rows])
