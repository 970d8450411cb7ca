"""A trigger set balanced by label, of all keys that a run was informed of, against NumPy on the same arrays in memory.

    python -m benchmark.selection presample [--samples 100000000] [--classes 1000] [--pairs 3] [--folder FOLDER] [--report]

Ours is the call `trigger` of a running selector, from the log of samples on the disk to a trigger set that is durable. NumPy's is the same
choice from arrays of labels and keys in memory, without any file: `bincount`, the quotas, a `choice` of the quota from each class, the
positions of each class (`argsort` of 16-bit labels, a radix sort), and the keys in stream order. The sides take turns.

Two ratios are printed, medians of NumPy's seconds divided by ours. The goal, at least 0.3, is of the whole: `bincount` and `choice` alone draw
numbers within each class, but no keys, and a selection without keys trains nothing. The ratio to these two alone says how far the selector is from
drawing. The last line is the first.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmark.data_path.installation import installation
from benchmark.machine import spread, write_report
from modyn.records import Int64Array, RunId, RunRegistration, SampleBatch
from modyn.selector.client import SelectorClient
from modyn.selector.window.quotas import quotas

RUN = RunId("balanced")
GOAL = 0.3
STEP = 1_000_000
"""Samples of one call of `inform`."""


def main() -> None:
    """Run it, and print the last line `presample: R`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100_000_000, help="25 bytes of disk each, and 40 of memory for NumPy")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--percent", type=int, default=10, help="percentage of the samples that are kept")
    parser.add_argument("--keys", type=int, default=1_000_000, help="maximum_keys_in_memory of the selector")
    parser.add_argument("--pairs", type=int, default=3, help="runs of each side")
    parser.add_argument("--folder", type=Path, help="where to put the files (default: a temporary folder)")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    labels = skewed_labels(options.samples, options.classes)
    with tempfile.TemporaryDirectory(prefix="modyn-presample-", dir=options.folder) as folder:
        body, ratio = compare(Path(folder), labels, options)
    print(body)
    if options.report:
        command = f"python -m benchmark.selection presample --samples {options.samples} --pairs {options.pairs}"
        print(f"report: {write_report('presample', command, body)}")
    print(f"presample: {ratio:.2f}")


def skewed_labels(count: int, classes: int) -> Int64Array:
    """Labels in random order of which some are 60 times as frequent as others, with 1,000 classes: int64 (count,)."""
    return (classes * np.random.default_rng(0).random(count) ** 2).astype(np.int64)


def compare(folder: Path, labels: Int64Array, options: argparse.Namespace) -> tuple[str, float]:
    """Measure both sides; return the report, and the median ratio."""
    size, tenth = len(labels) * options.percent // 100, len(labels) // 10
    ours, theirs, draws, grown = list[float](), list[float](), list[float](), list[int]()
    with installation(folder) as services, SelectorClient(services.config.endpoint("selector")) as selector:
        presampling = {"strategy": "LabelBalanced", "ratio": options.percent}
        section = {"name": "CoresetStrategy", "maximum_keys_in_memory": options.keys, "presampling_config": presampling}
        selector.register_run(RunRegistration(RUN, services.empty_dataset(), section, seed=0))
        inform(selector, labels, 0, tenth)
        with private_growth(services.pid("selector")) as of_tenth:
            selector.trigger(RUN, 0, tenth)
        inform(selector, labels, tenth, len(labels))
        for number in range(1, options.pairs + 1):
            seconds, drawing, expected = numpy_side(labels, size, number)
            theirs.append(seconds)
            draws.append(drawing)
            with private_growth(services.pid("selector")) as growth:
                began = perf_counter()
                info = selector.trigger(RUN, number, len(labels))
                ours.append(perf_counter() - began)
            grown += growth
            keys = np.concatenate([selector.keys(RUN, number, part).keys for part in range(info.num_partitions)])
            if not np.array_equal(np.sort(np.bincount(labels[keys])), np.sort(np.bincount(labels[expected]))):
                raise RuntimeError("both sides must keep as many samples of each class")
    ratio, drawing_ratio = (
        statistics.median(numpy / our for numpy, our in zip(seconds, ours, strict=True)) for seconds in (theirs, draws)
    )
    counts = np.bincount(labels)
    body = (
        f"{len(labels):,} keys in {options.classes:,} classes of {counts.min():,} to {counts.max():,} samples; {size:,} are kept, balanced by class; "
        f"maximum_keys_in_memory {options.keys:,}.\n\n"
        f"- selector, from its log to a durable trigger set: {spread(ours)}\n"
        f"- NumPy, arrays in memory: {spread(theirs)}, of which {spread(draws)} for `bincount`, quotas and `choice` alone, which give no keys yet\n"
        f"- ratio, NumPy with the keys to the selector, median of pairs: {ratio:.2f}; this is the goal, at least {GOAL}, since a selection is of "
        "keys\n"
        f"- to `bincount`, quotas and `choice` alone: {drawing_ratio:.2f}\n"
        f"- memory of the selector, private pages: grows by {max(grown) / 2**20:.0f} MiB at most while it selects of all keys, by "
        f"{max(of_tenth) / 2**20:.0f} MiB of a tenth of them"
    )
    return body, ratio


def inform(selector: SelectorClient, labels: Int64Array, start: int, end: int) -> None:
    """Inform the run of samples [start, end), whose keys are their positions."""
    for first in range(start, end, STEP):
        positions = np.arange(first, min(first + STEP, end))
        selector.inform(RUN, first, SampleBatch(positions, positions, labels[first : first + len(positions)]))


def numpy_side(labels: Int64Array, size: int, seed: int) -> tuple[float, float, Int64Array]:
    """Return NumPy's seconds, those of counting and drawing alone, and the keys."""
    keys, random = np.arange(len(labels)), np.random.default_rng(seed)
    began = perf_counter()
    counts = np.bincount(labels)
    shares = quotas(counts, size, random)
    draws = [random.choice(n, k, replace=False, shuffle=False) for n, k in zip(counts.tolist(), shares.tolist(), strict=True)]
    drawn = perf_counter()
    by_class = np.argsort(labels.astype(np.int16), kind="stable")
    starts = (np.cumsum(counts) - counts).tolist()
    positions = np.concatenate([by_class[start + draw] for start, draw in zip(starts, draws, strict=True)])
    positions.sort()
    chosen = keys[positions]
    return perf_counter() - began, drawn - began, chosen


@contextmanager
def private_growth(pid: int) -> Iterator[list[int]]:
    """Watch the private memory of a process during the block; the list gets its largest growth in bytes."""
    before, most, ended = private_bytes(pid), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.02):
            most = max(most, private_bytes(pid))

    watcher, grown = threading.Thread(target=watch), list[int]()
    watcher.start()
    try:
        yield grown
    finally:
        ended.set()
        watcher.join()
        grown.append(max(most - before, 0))


def private_bytes(pid: int) -> int:
    """Return the memory that only this process has, without the page cache."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return 1024 * sum(int(fields[name].split()[0]) for name in ("Private_Clean", "Private_Dirty"))
