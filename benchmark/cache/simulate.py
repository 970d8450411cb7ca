"""Share of samples that each sampler serves from the cache, and number of samples that it prepares for this.

    python -m benchmark.cache simulate [--samples 1300000] [--grid-samples 20000] [--report]

Numbers of samples only: nothing is read, and what is prepared is there at once. All figures are of the epochs after the first of each job, until the
first job ends; `prepared` counts preparations in the background too, for each served sample. Samplers that serve a value again in later epochs keep
decoded values; the others keep augmented ones, which no job is served twice.

With all samples: 3 jobs in step and a cache for 20 %, all samplers; 8 jobs with `coordinated`, timed (goal: at most 300 s). With fewer: jobs from 1
to 8, caches for 5 to 100 %, and jobs out of step. The last line gives hits and preparations of `coordinated` with 3 jobs and 20 % (goals: at least
66 %, at most 0.35).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from benchmark.cache.job_clock import BINS, Outcome, Setting, simulate
from benchmark.cache.samplers import SAMPLERS
from benchmark.line_chart import line_chart
from benchmark.machine import REPORTS, busy_cores, dated, write_report

NAME = "cache-simulate"
JOBS = range(1, 9)
SHARES = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
OUT_OF_STEP = {
    "in step": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "a third of an epoch apart": ((0.0, 1 / 3, 2 / 3), (1.0, 1.0, 1.0)),
    "speeds 1, 1.3, 0.8": ((0.0, 0.0, 0.0), (1.0, 1.3, 0.8)),
    "speeds 1, 2, 4": ((0.0, 0.0, 0.0), (1.0, 2.0, 4.0)),
}
Grid = Mapping[tuple[str, int, float], Outcome]


def main() -> None:
    """Simulate, and print the last line `simulate: 66.7 % hits, 0.333 prepared`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.cache simulate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=1_300_000, help="of the main settings")
    parser.add_argument("--grid-samples", type=int, default=20_000, help="of each setting with other jobs and sizes")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--grid-batch-size", type=int, default=200)
    parser.add_argument("--most-jobs", type=int, default=max(JOBS), help="of the grid and of the timed setting")
    parser.add_argument("--report", action="store_true", help="write a dated report with pictures below benchmark/reports/")
    options = parser.parse_args()
    if options.epochs < 2 or options.most_jobs < 1:
        parser.error("--epochs is at least 2, as the first one is not counted, and --most-jobs at least 1")
    busy = busy_cores()
    timed = simulate("coordinated", Setting.in_step(options.samples, 0.2, options.most_jobs, options.epochs, options.batch_size))
    print(f"{options.most_jobs} jobs: {timed.seconds:.0f} s", flush=True)
    main_setting = Setting.in_step(options.samples, 0.2, 3, options.epochs, options.batch_size)
    main_outcomes = {name: simulate(name, main_setting) for name in SAMPLERS}
    size, batch_size = options.grid_samples, options.grid_batch_size
    grid = {
        (name, jobs, share): simulate(name, Setting.in_step(size, share, jobs, 2, batch_size))
        for name in SAMPLERS
        for jobs in range(1, options.most_jobs + 1)
        for share in SHARES
    }
    apart = {
        (title, name): simulate(name, Setting(size, 0.2, starts, speeds, 5, batch_size))
        for title, (starts, speeds) in OUT_OF_STEP.items()
        for name in SAMPLERS
    }
    body = "\n\n".join(
        [
            f"{options.most_jobs} jobs, {options.samples:,} samples, {options.epochs} epochs, batches of {options.batch_size}, cache for 20 %, "
            f"`coordinated`: {timed.seconds:.0f} s ({timed.hits:.1%} hits, {timed.prepared:.3f} prepared for each served sample). "
            f"Cores that other programs kept busy just before: {busy:.1f}.",
            f"3 jobs in step, {options.samples:,} samples, cache for 20 %:\n\n{outcome_table('sampler', main_outcomes)}",
            f"Hits in step, {size:,} samples:\n\n{grid_table(grid, 'hits')}",
            f"Preparations for each served sample:\n\n{grid_table(grid, 'prepared')}",
            *(
                f"3 jobs, {title}, {size:,} samples, cache for 20 %:\n\n"
                + outcome_table("sampler", {name: apart[title, name] for name in SAMPLERS})
                for title in OUT_OF_STEP
            ),
        ]
    )
    print(body)
    if options.report:
        command = (
            f"python -m benchmark.cache simulate --samples {options.samples} --grid-samples {size} --epochs {options.epochs}"
        )
        pictures = draw(grid, main_outcomes)
        print(f"report: {write_report(NAME, command, body + pictures)}")
    best = main_outcomes["coordinated"]
    print(f"simulate: {best.hits:.1%} hits, {best.prepared:.3f} prepared")


def outcome_table(what: str, outcomes: Mapping[str, Outcome]) -> str:
    """Return a row for each outcome. The order of `none` shows the correlation by chance."""
    rows = (
        f"| {name} | {found.hits:.1%} | {found.prepared:.3f} | {found.position:.2f} | {found.repeats_order:.2f} | {found.pace:.2f} | "
        f"{found.seconds:.1f} |"
        for name, found in outcomes.items()
    )
    return "\n".join(
        [
            f"| {what} | hits | prepared | mean position of hits | correlation of the order with the epoch before | pace | seconds |",
            "|---|---|---|---|---|---|---|",
            *rows,
        ]
    )


def grid_table(grid: Grid, figure: str) -> str:
    """Rows: sampler and jobs. Columns: sizes of the cache."""
    rows = dict.fromkeys((name, jobs) for name, jobs, _ in grid)
    lines = (
        f"| {name} | {jobs} | " + " | ".join(f"{getattr(grid[name, jobs, share], figure):.2f}" for share in SHARES) + " |"
        for name, jobs in rows
    )
    head = f"| sampler | jobs | {' | '.join(f'{share:.0%}' for share in SHARES)} |"
    return "\n".join([head, "|---" * (2 + len(SHARES)) + "|", *lines])


def draw(grid: Grid, outcomes: Mapping[str, Outcome]) -> str:
    """Write the pictures. Returns the text that shows them in the report."""
    jobs = sorted({jobs for _, jobs, _ in grid})
    usual = min(3, jobs[-1])
    places = (np.arange(BINS) + 0.5) / BINS
    by_share = {name: [(share, grid[name, usual, share].hits) for share in SHARES] for name in SAMPLERS}
    by_jobs = {name: [(number, grid[name, number, 0.2].prepared) for number in jobs] for name in SAMPLERS}
    by_place = {name: _points(places, found.by_position) for name, found in outcomes.items()}
    pictures = {
        "hits": line_chart(f"Hits, {usual} jobs in step", ("share of the samples that fit", "hits"), by_share),
        "prepared": line_chart("Preparations for each served sample, cache for 20 %", ("jobs", "prepared"), by_jobs),
        "positions": line_chart("Hits by position, 3 jobs, cache for 20 %", ("place in the epoch", "hits"), by_place),
    }
    REPORTS.mkdir(exist_ok=True)
    for name, picture in pictures.items():
        (REPORTS / f"{dated(f'{NAME}-{name}')}.svg").write_text(picture)
    return "".join(f"\n\n![{name}]({dated(f'{NAME}-{name}')}.svg)" for name in pictures)


def _points(xs: Iterable[float], ys: Sequence[float] | np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(xs, ys, strict=True)]
