"""What a cache costs that never hits: one epoch over JPEG files of about 100 KB, while the cache fills, against no cache.

    python -m benchmark.cache overhead [--samples 2000] [--rounds 5] [--workers 2] [--report]

Both stores, with a budget for a fifth of the samples and for all of them; each run begins with an empty cache, so that each sample is looked for, and
kept as far as there is room. The last line gives the least of the ratios (goal: at least 0.95).
"""

from __future__ import annotations

import argparse
import statistics

from benchmark.cache.reading import command, compared, images, ratio
from benchmark.machine import busy_cores, write_report

NAME = "cache-overhead"
SHARES = (0.2, 1.0)


def main() -> None:
    """Measure, and print the last line `overhead: 0.97`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.cache overhead", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2, help="processes that decode")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    busy = busy_cores()
    rows, least = [], float("inf")
    with images(options.samples) as found:
        for store in ("memory", "redis"):
            for share in SHARES:
                ours, theirs = compared(
                    options.rounds,
                    lambda store=store, share=share: found.read(  # type: ignore[misc]
                        found.cache(store, {"decoded": found.budget(share)}), 1, options.workers
                    )[0],
                    lambda: found.read(None, 1, options.workers)[0],
                )
                rows.append(
                    f"| {store} | {share:.0%} | {statistics.median(ours):.2f} s | {statistics.median(theirs):.2f} s | {ratio(ours, theirs):.3f} |"
                )
                print(rows[-1], flush=True)
                least = min(least, ratio(ours, theirs))
        size = f"{options.samples:,} files of {found.mean_bytes / 1000:.0f} KB"
    body = (
        f"{size}, decoded and resized to 192 KB each, one epoch, {options.workers} processes, medians of {options.rounds} rounds. "
        f"Cores that other programs kept busy just before: {busy:.1f}.\n\n"
        "| store | room for | with an empty cache | without | ratio |\n|---|---|---|---|---|\n" + "\n".join(rows)
    )
    if options.report:
        print(f"report: {write_report(NAME, command('overhead', options), body)}")
    print(f"overhead: {least:.2f}")
