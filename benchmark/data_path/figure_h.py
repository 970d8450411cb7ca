"""Informing, triggering and reading of keys in columnar files, compared with NumPy writing and reading the same bytes.

NumPy writes keys, timestamps and labels of each batch into three columns of one file, reads the keys, writes keys and weights to another file and
reads it by partitions. The target is for NumPy as it is: nothing it wrote is on the disk when it says so. The figure also has NumPy with the
selector's promise that a batch is wholly on the disk, or not there at all, before the next one comes: it waits for the rows, writes their
number, and waits again, and waits for the set, as the selector does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmark.data_path.figure import Case, Figure, Measured, Setting, Side
from benchmark.data_path.installation import installation
from benchmark.data_path.selector_side import PARTITION, Order, parts, selector_side, stream
from modyn.records import SampleBatch

_HEAD_BYTES = 4096
"""Number of rows, before the columns."""


def numpy_side(folder: Path, samples: SampleBatch, *, durable: bool) -> Side:
    stream, trigger_set = folder / "stream", folder / "set"

    def run(ready: Callable[[], None]) -> Measured:
        folder.mkdir(exist_ok=True)
        for path in (stream, trigger_set):
            path.unlink(missing_ok=True)
        ready()
        began = perf_counter()
        with open(stream, "wb", buffering=0) as file:
            for position, part in parts(samples):
                for column, values in enumerate((part.keys, part.timestamps, part.labels)):
                    file.seek(_HEAD_BYTES + 8 * (column * len(samples) + position))
                    values.tofile(file)
                if durable:
                    os.fdatasync(file.fileno())
                    os.pwrite(file.fileno(), (position + len(part)).to_bytes(8, "little"), 0)
                    os.fdatasync(file.fileno())
        with open(trigger_set, "wb", buffering=0) as file:
            keys = np.fromfile(stream, np.int64, len(samples), offset=_HEAD_BYTES)
            keys.tofile(file)
            np.ones(len(keys), np.float32).tofile(file)
            if durable:
                os.fdatasync(file.fileno())
        found = 0
        for first in range(0, len(samples), PARTITION):
            count = min(PARTITION, len(samples) - first)
            found += len(np.fromfile(trigger_set, np.int64, count, offset=8 * first))
            np.fromfile(trigger_set, np.float32, count, offset=8 * len(samples) + 4 * first)
        seconds = perf_counter() - began
        if found != len(samples):
            raise RuntimeError(f"{found} of {len(samples)} keys were read")
        return Measured(len(samples) / seconds)

    return Side(f"NumPy{', each batch on disk' if durable else ''}", run)


@contextmanager
def prepare(setting: Setting) -> Iterator[list[Case]]:
    orders: tuple[Order, ...] = ("ascending", "random")
    with installation(setting.folder) as services:
        cases = []
        for order in orders:
            samples = stream(setting.samples, order)
            ours = selector_side(services, samples, "local")
            for durable in (False, True):
                theirs = numpy_side(setting.folder / "numpy", samples, durable=durable)
                name = f"keys {order}, NumPy {'waits for the disk as we do' if durable else 'does not wait for the disk'}"
                # Not cold: both sides read what they have just written.
                cases.append(Case(name, None if durable else 0.3, ours, theirs, cold=False))
        yield cases


FIGURE = Figure(
    "h",
    "inform, trigger and read keys, columnar state, against NumPy writing and reading the same bytes",
    "keys/s",
    samples=10_000_000,
    smoke_samples=250_000,
    prepare=prepare,
)
