"""One training alone, several epochs over JPEG files of about 60 KB, with a cache that holds half of the samples or all, against no cache.

    python -m benchmark.cache single [--samples 2000] [--epochs 4] [--rounds 3] [--workers 2] [--report]

Counted is all of the time, of the first epoch too, in which the cache fills; and the last epoch by itself. The last line gives the ratio over
all epochs with a cache for all samples in Redis.
"""

from __future__ import annotations

import argparse
import statistics

from benchmark.cache.reading import command, compared, images, ratio
from benchmark.machine import busy_cores, write_report

NAME = "cache-single"
SHARES = (0.5, 1.0)


def main() -> None:
    """Measure, and print the last line `single: 2.1`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.cache single", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="processes that decode")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    busy = busy_cores()
    rows, whole = [], 0.0
    with images(options.samples) as found:
        for store in ("memory", "redis"):
            for share in SHARES:
                last: tuple[list[float], list[float]] = ([], [])

                def read(cached: bool, store: str = store, share: float = share, last: object = last) -> float:
                    cache = found.cache(store, {"decoded": found.budget(share)}) if cached else None  # type: ignore[arg-type]
                    seconds = found.read(cache, options.epochs, options.workers)
                    last[not cached].append(seconds[-1])  # type: ignore[index]
                    return sum(seconds)

                ours, theirs = compared(options.rounds, lambda read=read: read(True), lambda read=read: read(False))  # type: ignore[misc]
                whole = ratio(ours, theirs)
                rows.append(
                    f"| {store} | {share:.0%} | {statistics.median(ours):.2f} s | {statistics.median(theirs):.2f} s | {whole:.2f} | "
                    f"{ratio(last[0][1:], last[1][1:]):.2f} |"
                )
                print(rows[-1], flush=True)
        size = f"{options.samples:,} files of {found.mean_bytes / 1000:.0f} KB"
    body = (
        f"{size}, decoded and resized to 192 KB each, {options.epochs} epochs, {options.workers} processes, medians of {options.rounds} rounds. "
        f"Cores that other programs kept busy just before: {busy:.1f}.\n\n"
        "| store | room for | with a cache | without | ratio over all epochs | of the last epoch |\n|---|---|---|---|---|---|\n"
        + "\n".join(rows)
    )
    if options.report:
        print(f"report: {write_report(NAME, command('single', options), body)}")
    print(f"single: {whole:.2f}")
