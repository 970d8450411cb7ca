"""Cost of a cache without hits: one epoch over JPEG files of about 100 KB while the cache fills, compared with no cache.

    python -m benchmark.cache overhead [--samples 2000] [--rounds 5] [--workers 2] [--report]

Both stores, with a budget for a fifth of the samples and for all of them, and one training alone whose cache is made for four (`cache: {jobs: 4}`).
Each run begins with an empty cache, so that each sample is looked for, and kept as far as there is room. CPU time is that of all processes, Redis
among them: it hardly depends on what else runs.

Then bytes of what trainings that share samples know together in Redis, for each of 100,000 samples of which a fifth, three fifths or all are cached,
after all of them have served an epoch. The last line gives the least of the ratios (goal: at least 0.95) and the most of the bytes (goal: at most 8,
and a bit for each training).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from redis import Redis

from benchmark.cache.bar_chart import bar_chart
from benchmark.cache.reading import Images, command, images, in_turn
from benchmark.cache.sides import open_side
from benchmark.machine import REPORTS, busy_cores, cpu_s, dated, write_report
from modyn.cache.keys import NAMESPACE_BYTES
from modyn.cache.sharing.redis_state import RedisState
from modyn.cache.sharing.shared_job import SharedJob
from modyn.cache.sharing.state import SharePlace
from modyn.cache.tiers.tier import StoreName
from modyn.dataset.batch import Batch

NAME = "cache-overhead"
SHARES = (0.2, 1.0)
STORES: tuple[StoreName, ...] = ("memory", "redis")
METADATA_SAMPLES, METADATA_SHARES = 100_000, (0.2, 0.6, 1.0)
Cost = npt.NDArray[np.float64]
"""Wall-clock seconds and CPU seconds, (2,)."""


def main() -> None:
    """Measure, and print the last line `overhead: 0.97, 5.3 bytes a sample`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.cache overhead", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2, help="processes that decode")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    busy = busy_cores()
    rows, ratios = [], dict[str, float]()

    def compare(name: str, share: float, ours: Callable[[], Cost], theirs: Callable[[], Cost]) -> None:
        wall, cpu = np.moveaxis(np.median(in_turn(options.rounds, ours, theirs), axis=1), -1, 0)
        more_us = 1e6 * (cpu[0] - cpu[1]) / options.samples
        rows.append(
            f"| {name} | {share:.0%} | {wall[0]:.2f} s | {wall[1]:.2f} s | {wall[1] / wall[0]:.3f} | {cpu[0]:.2f} s | {cpu[1]:.2f} s "
            f"| {cpu[1] / cpu[0]:.3f} | {more_us:.0f} µs |"
        )
        print(rows[-1], flush=True)
        ratios[f"{name}, {share:.0%}"] = float(wall[1] / wall[0])

    with images(options.samples) as found:
        plain = partial(_read, found, None, 0.0, options.workers)
        for store in STORES:
            for share in SHARES:
                compare(store, share, partial(_read, found, store, share, options.workers), plain)
        compare("memory, jobs: 4", 1.0, *(partial(_read_side, found, side, options.workers) for side in ("ours", "plain")))
        metadata = {(share, jobs): _metadata_bytes(found.redis_url, share, jobs) for share in METADATA_SHARES for jobs in (2, 8)}
        size = f"{options.samples:,} files of {found.mean_bytes / 1000:.0f} KB"
    body = (
        f"{size}, decoded and resized to 192 KB each, one epoch, {options.workers} processes, medians of {options.rounds} rounds. "
        f"Cores that other programs kept busy just before: {busy:.1f}.\n\n"
        "| store | room for | with an empty cache | without | ratio | CPU with it | without | ratio | CPU more a sample |\n"
        "|---|---|---|---|---|---|---|---|---|\n"
        + "\n".join(rows)
        + f"\n\nMetadata of {METADATA_SAMPLES:,} samples in Redis:\n\n"
        "| cached | trainings | bytes a sample |\n|---|---|---|\n"
        + "\n".join(f"| {share:.0%} | {jobs} | {num_bytes:.2f} |" for (share, jobs), num_bytes in metadata.items())
    )
    if options.report:
        path = REPORTS / f"{dated(NAME)}.svg"
        path.write_text(bar_chart("Speed with an empty cache, without one 1", ratios, 0.95))
        body += f"\n\n![Speed with an empty cache]({path.name})"
        print(f"report: {write_report(NAME, command('overhead', options), body)}")
    print(f"overhead: {min(ratios.values()):.2f}, {max(metadata.values()):.1f} bytes a sample")


def _read(found: Images, store: StoreName | None, share: float, workers: int) -> Cost:
    cache = None if store is None else found.cache(store, {"decoded": found.budget(share)})
    with found.batches(cache, 1, workers) as (loader, _):
        return _cost(loader, found)


def _read_side(found: Images, side: str, workers: int) -> Cost:
    with open_side(side, found, 1.0, jobs=4).loader(seed=0, epochs=1, workers=workers) as loader:
        return _cost(loader, found)


def _metadata_bytes(url: str, share: float, num_jobs: int) -> float:
    """Return the bytes of the shared state per sample after each job has begun its second epoch."""
    keys, size = np.arange(METADATA_SAMPLES), METADATA_SAMPLES // 20
    place = SharePlace(os.urandom(NAMESPACE_BYTES), int(share * METADATA_SAMPLES))
    jobs = [SharedJob(RedisState(place, url, 20.0), keys, seed, True) for seed in range(num_jobs)]
    for job in jobs * 22:
        batch = job.next_batch(size)
        job.report_made(batch.number, batch.keys[batch.admitted])
    with Redis.from_url(url) as client:
        names: Any = client.keys("modyn:sharing:*")
        used: Any = sum(client.execute_command("MEMORY", "USAGE", name, "SAMPLES", 0) for name in names)
        client.delete(*names)
    return float(used) / METADATA_SAMPLES


def _cost(batches: Iterable[Batch], found: Images) -> Cost:
    """Time of all batches after the first: starting and ending processes is not counted."""
    redis_url = found.redis_url

    def now() -> Cost:
        return np.array([time.perf_counter(), cpu_s(os.getpid(), redis_url=redis_url)])

    start, seen = None, 0
    for batch in batches:
        start = now() if start is None else start
        seen += len(batch)
        if seen == found.trigger_set.num_keys:
            return now() - start
    raise RuntimeError(f"{seen} samples came, not {found.trigger_set.num_keys}")
