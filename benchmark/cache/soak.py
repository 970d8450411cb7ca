"""Fifty epochs with a cache that holds a part of the samples: the memory of Redis, of all our processes, and of /dev/shm, epoch by epoch.

    python -m benchmark.cache soak [--samples 400] [--epochs 50] [--jobs 2] [--sides SIDE] [--report]
    python -m benchmark.cache soak --samples 100 --epochs 6                                           (in a minute)

Several trainings at once over JPEG files of about 100 KB, first with the cache in shared memory, then in Redis. The program fails unless
- what the store holds stays below the budget, Redis below 1.5 times of it (for its own tables and what its allocator keeps), beyond what it
  had before, and
- nothing grows: in the last fifth of the epochs it is at most 5 % and 32 MB above what it was in the second fifth, each by medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from benchmark.cache.arrivals import Arrivals
from benchmark.cache.reading import Images, command, images
from benchmark.cache.sides import CACHED, CHECKED, PLAIN, open_side
from benchmark.cache.training_processes import Training, TrainingProcesses
from benchmark.line_chart import line_chart
from benchmark.machine import REPORTS, busy_cores, dated, family, write_report
from modyn.cache.tiers.redis_address import RedisAddress
from modyn.cache.tiers.tier import StoreName

NAME = "cache-soak"
GROWTH, GROWTH_BYTES = 0.05, 32e6
REDIS_OVERHEAD: Final = 1.5
STORES: Final[tuple[StoreName, ...]] = ("memory", "redis")
SERIES: Final = ("services", "trainings", "shm", "redis")


class Memory(NamedTuple):
    """Memory in use at one time, in bytes. services, trainings: of processes, those of Redis and PostgreSQL too, without what they
    share with others in /dev/shm or map from files."""

    time: float
    services: float
    trainings: float
    shm: float
    """Bytes of the cache, below /dev/shm."""
    redis: float
    """`used_memory` of INFO."""


def main() -> None:
    """Measure, and print the last line `soak: within bounds`. Exits with what is not, if something is."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.cache soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--share", type=float, default=0.3, help="of the decoded bytes that the cache holds")
    parser.add_argument("--sides", nargs="+", choices=CACHED, default=[CHECKED])
    parser.add_argument("--report", action="store_true", help="write a dated report with pictures below benchmark/reports/")
    options = parser.parse_args()
    if options.epochs < 5:
        parser.error("--epochs is at least 5: fifths of them are compared")
    busy = busy_cores()
    looks: dict[str, list[Memory]] = {}
    problems: list[str] = []
    with images(options.samples) as found, TrainingProcesses(options.jobs) as processes:
        budget = found.budget(options.share)
        for name in options.sides:
            for store in STORES:
                title = f"{name}, {store}"
                looks[title], base = watched(found, processes, name, store, options)
                problems += [f"{title}: {problem}" for problem in out_of_bounds(looks[title], base, budget)]
                print(row(title, looks[title]), flush=True)
    body = (
        f"{options.samples:,} files of {found.mean_bytes / 1000:.0f} KB, {options.epochs} epochs of {options.jobs} trainings at once, budget of "
        f"{budget / 1e6:.0f} MB. Cores that other programs kept busy just before: {busy:.1f}. {'; '.join(problems) or 'All within bounds'}.\n\n"
        "MB, medians of the second and of the last fifth of the epochs:\n\n"
        f"| side, store | {' | '.join(SERIES)} |\n|---|---|---|---|---|\n"
        + "\n".join(row(title, found) for title, found in looks.items())
    )
    print(body)
    if options.report:
        body += draw(looks)
        print(f"report: {write_report(NAME, command('soak', options), body)}")
    if problems:
        raise SystemExit("\n".join(problems))
    print("soak: within bounds")


def watched(
    found: Images, processes: TrainingProcesses, name: str, store: StoreName, options: argparse.Namespace
) -> tuple[list[Memory], Memory]:
    """Run the trainings. Returns the memory after each epoch of the first of them, and that before."""
    # What processes need for reading at all is there before anything counts.
    processes.read([Training(open_side(PLAIN, found, options.share), 1, job) for job in range(options.jobs)])
    side = open_side(name, found, options.share, store)
    trainings = [Training(side, options.epochs, job) for job in range(options.jobs)]
    looks: list[Memory] = []
    with closing(RedisAddress(found.redis_url, timeout_s=5.0).connect()) as redis:
        base = look(found, redis)
        arrivals = processes.read(trainings, lambda: looks.append(look(found, redis)))
    return by_epoch(looks, arrivals[0], options.samples, options.epochs), base


def look(found: Images, redis: Any) -> Memory:
    """Return the memory in use now. Trainings: this process and the processes that it started, without the services."""
    parts = [part.pid for part in found.services.client.status().parts if part.pid is not None]
    services = {member for pid in parts for member in family(pid)}
    trainings = set(family(os.getpid())) - services
    used = float(redis.info("memory")["used_memory"])
    return Memory(
        time.monotonic(), sum(map(_own_bytes, services)), sum(map(_own_bytes, trainings)), _bytes_below(found.folder), used
    )


def by_epoch(looks: Sequence[Memory], arrivals: Arrivals, samples: int, epochs: int) -> list[Memory]:
    """The medians of the looks of each epoch; an epoch in which none fell has those of the look before, or of the first.

    >>> looks = [Memory(time, 10 * time, 0, 0, 0) for time in (1, 2, 3, 7)]
    >>> ends = Arrivals(np.array([3.5, 6.0, 8.0]), np.array([4, 8, 12]))
    >>> [memory.services for memory in by_epoch(looks, ends, samples=4, epochs=3)]
    [20, 30, 70]
    """
    ends = [arrivals.reached(samples * (epoch + 1)) for epoch in range(epochs)]
    found: list[Memory] = []
    for begin, end in pairwise([-np.inf, *ends]):
        inside = [look for look in looks if begin < look.time <= end]
        before = [look for look in looks if look.time <= begin][-1:]
        found.append(Memory(*map(statistics.median, zip(*(inside or before or looks[:1]), strict=True))))
    return found


def out_of_bounds(looks: Sequence[Memory], base: Memory, budget: int) -> list[str]:
    """Return sentences about values outside the guaranteed limits."""
    problems = []
    bounds = {"shm": float(budget), "redis": REDIS_OVERHEAD * budget}
    for name, bound in bounds.items():
        most = max(getattr(found, name) for found in looks) - getattr(base, name)
        if most > bound:
            problems.append(f"{name} has {most / 1e6:.1f} MB more than before, and {bound / 1e6:.1f} MB are allowed")
    for name in SERIES:
        early, late = fifths(looks, name)
        if late > (1 + GROWTH) * early + GROWTH_BYTES:
            problems.append(f"{name} grew from {early / 1e6:.1f} to {late / 1e6:.1f} MB")
    return problems


def fifths(looks: Sequence[Memory], name: str) -> tuple[float, float]:
    """Medians of the second and of the last fifth.

    >>> fifths([Memory(0, 0, 0, size, 0) for size in range(10)], "shm")
    (2.5, 8.5)
    """
    fifth = len(looks) // 5
    values: list[float] = [getattr(found, name) for found in looks]
    return statistics.median(values[fifth : 2 * fifth]), statistics.median(values[-fifth:])


def row(title: str, looks: Sequence[Memory]) -> str:
    """Row of the table."""
    cells = [f"{early / 1e6:.1f} → {late / 1e6:.1f}" for early, late in (fifths(looks, name) for name in SERIES)]
    return f"| {title} | {' | '.join(cells)} |"


def draw(looks: Mapping[str, Sequence[Memory]]) -> str:
    """Write a picture for each run. Returns what shows them in the report."""
    shown = ""
    for title, found in looks.items():
        lines = {name: [(epoch + 1.0, getattr(at, name) / 1e6) for epoch, at in enumerate(found)] for name in SERIES}
        path = REPORTS / f"{dated('-'.join([NAME, *title.split(', ')]))}.svg"
        path.write_text(line_chart(f"Memory, {title}", ("epoch", "MB"), lines))
        shown += f"\n\n![Memory, {title}]({path.name})"
    return shown


def _own_bytes(pid: int) -> float:
    """Resident bytes that no other process has; none if it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return sum(float(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))
    return 0.0


def _bytes_below(folder: Path) -> float:
    """Memory of the files below a folder; files that are removed meanwhile do not count."""
    total = 0
    for below, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += 512 * os.stat(os.path.join(below, name)).st_blocks
    return float(total)
