"""Informing, triggering and reading of keys in columnar files against NumPy writing and reading the same bytes.

NumPy appends keys, timestamps and labels of each batch to three files, reads the keys, writes keys and weights to another file and reads it
by partitions. With what the selector promises: each batch is on the disk before the next one. And, for scale, without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmark.data_path.figure import Case, Figure, Measured, Setting, Side
from benchmark.data_path.installation import installation
from benchmark.data_path.selector_side import PARTITION, Order, parts, selector_side, stream
from modyn.records import SampleBatch


def numpy_side(folder: Path, samples: SampleBatch, *, durable: bool) -> Side:
    def run(ready: Callable[[], None]) -> Measured:
        folder.mkdir(exist_ok=True)
        ready()
        began = perf_counter()
        with ExitStack() as stack:
            columns = [stack.enter_context(open(folder / name, "wb", buffering=0)) for name in ("keys", "timestamps", "labels")]
            for _, part in parts(samples):
                for file, values in zip(columns, (part.keys, part.timestamps, part.labels), strict=True):
                    values.tofile(file)
                    if durable:
                        os.fdatasync(file.fileno())
        with open(folder / "set", "wb", buffering=0) as file:
            keys = np.fromfile(folder / "keys", np.int64)
            keys.tofile(file)
            np.ones(len(keys), np.float32).tofile(file)
            if durable:
                os.fdatasync(file.fileno())
        found = 0
        for first in range(0, len(samples), PARTITION):
            count = min(PARTITION, len(samples) - first)
            found += len(np.fromfile(folder / "set", np.int64, count, offset=8 * first))
            np.fromfile(folder / "set", np.float32, count, offset=8 * len(samples) + 4 * first)
        seconds = perf_counter() - began
        if found != len(samples):
            raise RuntimeError(f"{found} of {len(samples)} keys were read")
        return Measured(len(samples) / seconds)

    return Side(f"NumPy, {'each batch on disk' if durable else 'page cache only'}", run)


@contextmanager
def prepare(setting: Setting) -> Iterator[list[Case]]:
    orders: tuple[Order, ...] = ("ascending", "random")
    with installation(setting.folder) as services:
        cases = []
        for order in orders:
            samples = stream(setting.samples, order)
            ours = selector_side(services.config, samples, "local")
            for durable in (True, False):
                theirs = numpy_side(setting.folder / "numpy", samples, durable=durable)
                name = f"keys {order}, NumPy {'syncs as we do' if durable else 'does not sync'}"
                cases.append(Case(name, 0.3 if durable else None, ours, theirs, cold=False))
        yield cases


FIGURE = Figure(
    "h",
    "inform, trigger and read keys, columnar state, against NumPy writing and reading the same bytes",
    "keys/s",
    samples=10_000_000,
    smoke_samples=250_000,
    prepare=prepare,
)
