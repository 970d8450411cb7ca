"""Ingestion of one large CSV file compared with pyarrow's CSV reader with its own defaults."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import numpy as np
from pyarrow import csv

from benchmark.data_path.figure import Case, Figure, Measured, Setting, Side
from benchmark.data_path.ingestion_side import ingestion_side
from benchmark.data_path.installation import installation
from modyn.config.dataset import DatasetConfig

_BLOCK_ROWS = 50_000


@contextmanager
def prepare(setting: Setting) -> Iterator[list[Case]]:
    path = _write_rows(setting.folder / "rows" / "rows.csv", setting.samples)
    megabytes = path.stat().st_size / 1e6
    dataset = DatasetConfig(
        name="rows",
        base_path=path.parent,
        file_wrapper="CsvFileWrapper",
        file_wrapper_config={"label_index": 0},
        watch=False,
    )
    with installation(setting.folder) as services:
        ours = ingestion_side(services, dataset, setting.samples, megabytes)
        yield [Case("pyarrow.csv.read_csv", 0.5, ours, _pyarrow(path, setting.samples, megabytes), [path])]


def _write_rows(path: Path, num_rows: int) -> Path:
    """Rows of about 100 bytes: a label, eight decimal numbers, a count, and a text that is quoted where it holds a separator or quotes.
    No text holds a line break, so that pyarrow may work as it is fastest."""
    random = np.random.default_rng(0)
    texts = ["short", '"with, separator"', '"says ""so"""', "somewhat longer text"]
    block = io.StringIO()
    for label, numbers, count, text in zip(
        random.integers(0, 1000, _BLOCK_ROWS),
        random.normal(size=(_BLOCK_ROWS, 8)),
        random.integers(0, 10**6, _BLOCK_ROWS),
        random.integers(0, len(texts), _BLOCK_ROWS),
        strict=True,
    ):
        block.write(f"{label},{','.join(f'{number:.6f}' for number in numbers)},{count},{texts[text]}\n")
    content = block.getvalue().encode()
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        for _ in range(num_rows // _BLOCK_ROWS):
            file.write(content)
        file.writelines(content.splitlines(keepends=True)[: num_rows % _BLOCK_ROWS])
    os.utime(path, (1_000_000, 1_000_000))
    return path


def _pyarrow(path: Path, num_rows: int, megabytes: float) -> Side:
    def run(ready: Callable[[], None]) -> Measured:
        ready()
        began = perf_counter()
        table = csv.read_csv(path, csv.ReadOptions(autogenerate_column_names=True))
        seconds = perf_counter() - began
        if table.num_rows != num_rows:
            raise RuntimeError(f"pyarrow read {table.num_rows:,} rows, {num_rows:,} were written")
        return Measured(megabytes / seconds)

    return Side("pyarrow.csv", run)


FIGURE = Figure("g", "ingestion of one CSV file", "MB/s", samples=10_000_000, smoke_samples=20_000, prepare=prepare)
