"""Rate at which records are gathered from files, compared with NumPy's fancy indexing of one memory map.

    python -m benchmark.gather [--records 5000000] [--pairs 5] [--folder FOLDER] [--report]

Payloads of 156 bytes, of records of 160 in files of 180,000, in batches of 65,536: shuffled and in order, page cache warm and cold, on one
thread and on two. `mapped` is what `Gatherer` does; `read` is the same without maps; NumPy has one thread. The sides take turns. The last
line is the median ratio to NumPy of the warm, shuffled case on one thread.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmark.data_path.page_cache import drop
from benchmark.machine import spread, write_report
from modyn._core import Gatherer, PathTable
from modyn.records import Int64Array

RECORD = 160
LABEL = 4
PER_FILE = 180_000
BATCH = 65_536

Fetch = Callable[[], npt.NDArray[np.uint8]]
Side = Callable[[Int64Array], Fetch]
"""Prepares a function that fetches records by number. Only the fetch is timed: finding the place of a record is the index's work."""


class Records:
    """The same records as many files and as one."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        self.one_file = folder / "all"
        names = [str(number) for number in range(-(-count // PER_FILE))]
        with open(self.one_file, "wb") as everything:
            for number, name in enumerate(names):
                rows = min(PER_FILE, count - number * PER_FILE)
                content = np.random.default_rng(number).bytes(rows * RECORD)
                (folder / name).write_bytes(content)
                everything.write(content)
        self.paths = PathTable(folder)
        self.paths.append(names)

    def numpy(self) -> Side:
        table = np.memmap(self.one_file, np.uint8, "r").reshape(-1, RECORD)
        return lambda numbers: lambda: table[numbers, LABEL:]

    def gatherer(self, threads: int, max_open_files: int = 256) -> Side:
        gatherer = Gatherer(max_open_files, threads)

        def prepare(numbers: Int64Array) -> Fetch:
            files, places = np.divmod(numbers, PER_FILE)
            file_ids, offsets = files.astype(np.uint32), places * RECORD + LABEL
            return lambda: gatherer.gather(self.paths, file_ids, offsets, RECORD - LABEL)[0]

        return prepare


def rate(side: Side, order: Int64Array) -> float:
    """Return million records a second, over all whole batches of `order`."""
    fetches = [side(order[first : first + BATCH]) for first in range(0, len(order) - BATCH + 1, BATCH)]
    started = time.perf_counter()
    for fetch in fetches:
        fetch()
    return len(fetches) * BATCH / (time.perf_counter() - started) / 1e6


def compare(records: Records, order: Int64Array, threads: int, cold: bool, pairs: int) -> dict[str, list[float]]:
    """Return the rates of each side, which run in turn."""
    # No file can be kept open without room for it, so none is mapped.
    sides: dict[str, Callable[[], Side]] = {
        "mapped": lambda: records.gatherer(threads),
        "read": lambda: records.gatherer(threads, max_open_files=0),
        "numpy": records.numpy,
    }
    kept = {name: make() for name, make in sides.items()} if not cold else {}
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(pairs if cold else pairs + 1):
        for name, make in sides.items():
            if cold:
                drop([records.folder])  # of files that no process maps: the sides of cold cases live for one turn only
            measured = rate(make() if cold else kept[name], order)
            if cold or turn > 0:  # the first warm turn brings the files into memory and into the page tables
                rates[name].append(measured)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--pairs", type=int, default=5, help="runs of each side")
    parser.add_argument("--folder", type=Path, help="where to put the files (default: a temporary folder)")
    parser.add_argument("--report", action="store_true", help="write a dated report below benchmark/reports/")
    options = parser.parse_args()
    lines = []
    ratios = {}
    with tempfile.TemporaryDirectory(prefix="modyn-gather-", dir=options.folder) as folder:
        records = Records(Path(folder), options.records)
        orders = {
            "shuffled": np.random.default_rng(0).permutation(options.records),
            "in order": np.arange(options.records),
        }
        for cold, (name, order), threads in itertools.product((False, True), orders.items(), (1, 2)):
            rates = compare(records, order, threads, cold, options.pairs)
            case = f"{'cold' if cold else 'warm'}, {name}, {threads} thread{'s'[: threads - 1]}"
            to_numpy, to_read = (
                statistics.median(ours / theirs for ours, theirs in zip(rates["mapped"], rates[side], strict=True))
                for side in ("numpy", "read")
            )
            ratios[case] = to_numpy
            each = "; ".join(f"{side} {spread(values, 'M/s')}" for side, values in rates.items())
            lines.append(f"- {case}: {to_numpy:.2f} of numpy, {to_read:.2f} of read ({each})")
            print(lines[-1])
    if options.report:
        command = f"python -m benchmark.gather --records {options.records} --pairs {options.pairs}"
        body = "Million records a second, median (range); ratios are medians of pairs.\n\n" + "\n".join(lines)
        print(f"report: {write_report('gather', command, body)}")
    print(f"warm, shuffled, 1 thread: {ratios['warm, shuffled, 1 thread']:.2f}")


if __name__ == "__main__":
    main()
