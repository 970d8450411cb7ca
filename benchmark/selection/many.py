"""Time and memory of a choice from millions of candidates whose features are on disk.

    python -m benchmark.selection many [--samples 10000000] [--dimensions 64] [--share 0.1] [--report]

One process for each of CRAIG, GradMatch and k-center, with one thread. Memory is what the process holds by itself at most (RssAnon, looked at 20
times a second); the pages of the mapped file are the page cache's. The last line is the largest of them, in GB (goal: at most 1 for 10 million × 64).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmark.machine import busy_cores, write_report
from benchmark.selection.sides import ONE_THREAD, ROOT

CHOICES: Final = ("craig", "gradmatch", "k_centers")


def main() -> None:
    """Measure, and print the last line `many: GB`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmark.selection many", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--dimensions", type=int, default=64)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--choices", nargs="+", choices=CHOICES, default=list(CHOICES))
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    parser.add_argument("--side", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(_choose(options.side[0], Path(options.side[1]), options.share)))
        return
    busy = busy_cores()
    with tempfile.TemporaryDirectory(prefix="modyn-many-") as name:
        path = Path(name) / "features.npy"
        _write(path, options.samples, options.dimensions)
        found = {choice: _side(choice, path, options.share) for choice in options.choices}
    rows = [
        f"| {choice} | {run['chosen']:,} | {run['cpu']:.0f} s | {run['wall']:.0f} s | {run['anonymous']:.2f} GB |"
        for choice, run in found.items()
    ]
    lines = [
        f"{options.samples:,} × {options.dimensions} float32 in a file, {options.share:.0%} chosen; one thread.",
        "",
        "| choice | chosen | CPU | wall | memory of its own |",
        "|---|---|---|---|---|",
        *rows,
        "",
        f"Cores that other programs kept busy just before: {busy:.1f}.",
    ]
    print("\n".join(lines))
    if options.report:
        command = f"python -m benchmark.selection many --samples {options.samples} --share {options.share}"
        print(f"report: {write_report('selection-many', command, chr(10).join(lines))}")
    print(f"many: {max(run['anonymous'] for run in found.values()):.2f}")


def _write(path: Path, samples: int, dimensions: int) -> None:
    """Clusters of different sizes: gradients are not alike in all directions."""
    file = np.lib.format.open_memmap(path, "w+", np.float32, (samples, dimensions))
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((100, dimensions), np.float32)
    for first in range(0, samples, 100_000):
        count = min(100_000, samples - first)
        which = np.minimum(rng.geometric(0.05, count), 100) - 1
        file[first : first + count] = centers[which] + rng.standard_normal((count, dimensions), np.float32)
    file.flush()


def _side(choice: str, path: Path, share: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmark.selection", "many", "--side", choice, str(path), "--share", str(share)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, **ONE_THREAD}, check=True)
    return dict(json.loads(done.stdout))


def _choose(choice: str, path: Path, share: float) -> dict[str, Any]:
    from modyn.trainer_server.downsampling.coresets import choices

    features = np.load(path, mmap_mode="r")
    peak = [_anonymous()]
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            peak[0] = max(peak[0], _anonymous())

    thread = threading.Thread(target=look)
    thread.start()
    cpu, wall = time.process_time(), time.perf_counter()
    found = getattr(choices, choice)(features, round(share * len(features)), np.random.default_rng(0))
    times = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
    over.set()
    thread.join()
    return {"chosen": len(found.positions), "anonymous": peak[0], **times}


def _anonymous() -> float:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) * 1024 / 1e9
