"""Ingestion of fixed-size records compared with the published rate, and with `cat` of the same files for scale."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from benchmark.data_path.figure import Case, Figure, Measured, Setting, Side
from benchmark.data_path.ingestion_side import ingestion_side
from benchmark.data_path.installation import installation
from benchmark.data_path.records import records_dataset, write_records

_PUBLISHED = 100_000.0
"""Largest number of samples/s that the published system registers."""
_WANTED = 3_000_000.0


@contextmanager
def prepare(setting: Setting) -> Iterator[list[Case]]:
    folder = write_records(setting.folder / "records", setting.samples)
    with installation(setting.folder) as services:
        ours = ingestion_side(services, records_dataset("records", folder), setting.samples, setting.samples)
        yield [
            Case("published rate", _WANTED / _PUBLISHED, ours, _PUBLISHED, [folder]),
            Case("cat of the files to /dev/null", None, ours, _cat(folder, setting.samples), [folder]),
        ]


def _cat(folder: Path, num_samples: int) -> Side:
    files = sorted(folder.iterdir())

    def run(ready: Callable[[], None]) -> Measured:
        ready()
        began = perf_counter()
        with open("/dev/null", "wb") as nowhere:
            subprocess.run(["cat", *files], stdout=nowhere, check=True)
        return Measured(num_samples / (perf_counter() - began))

    return Side("cat", run)


FIGURE = Figure("e", "ingestion of 160-byte records", "samples/s", samples=5_000_000, smoke_samples=20_000, prepare=prepare)
