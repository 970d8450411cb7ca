"""Indexing of files that library code reads in processes of bounded memory. It has no other side: it is for comparisons of checkouts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmark.data_path.figure import Case, Figure, Setting
from benchmark.data_path.ingestion_side import ingestion_side
from benchmark.data_path.installation import installation
from modyn.config.dataset import DatasetConfig

_SMALL, _LARGE = 1_000, 1_000_000
"""Rows of a file."""


def write_parquet(folder: Path, num_rows: int, rows_per_file: int, rows_per_group: int, *, numbers: bool) -> DatasetConfig:
    """Rows of four float32, or of one column of about 100 bytes, and a label."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for number, first in enumerate(range(0, num_rows, rows_per_file)):
        count = min(rows_per_file, num_rows - first)
        if numbers:
            columns = {f"x{i}": pa.array(random.normal(size=count).astype(np.float32)) for i in range(4)}
        else:
            columns = {"x": pa.array([random.bytes(100 + i % 9) for i in range(count)])}
        path = folder / f"{number:05d}.parquet"
        pq.write_table(pa.table({**columns, "label": np.arange(count) % 10}), path, row_group_size=rows_per_group)
        os.utime(path, (1_000_000 + number, 1_000_000 + number))
    options = {"payload_columns": ["x0", "x1", "x2", "x3"] if numbers else ["x"], "label_column": "label"}
    return DatasetConfig(
        name=folder.name, base_path=str(folder), file_wrapper="ParquetFileWrapper", file_wrapper_config=options, watch=False
    )


def write_json_lines(folder: Path, num_lines: int, lines_per_file: int) -> DatasetConfig:
    """Lines of about 100 bytes."""
    folder.mkdir()
    for number, first in enumerate(range(0, num_lines, lines_per_file)):
        path = folder / f"{number:05d}.jsonl"
        with path.open("w") as file:
            for i in range(min(lines_per_file, num_lines - first)):
                file.write(json.dumps({"label": i % 10, "text": "some words " * (6 + i % 4)}) + "\n")
        os.utime(path, (1_000_000 + number, 1_000_000 + number))
    return DatasetConfig(
        name=folder.name,
        base_path=str(folder),
        file_wrapper="JsonLinesFileWrapper",
        file_wrapper_config={"label_field": "label"},
        watch=False,
    )


@contextmanager
def prepare(setting: Setting) -> Iterator[list[Case]]:
    samples, folder = setting.samples, setting.folder
    datasets = {
        "Parquet, numbers, files of 1,000 rows": write_parquet(folder / "small", samples, _SMALL, _SMALL, numbers=True),
        "Parquet, bytes, files of 1,000 rows": write_parquet(folder / "small-bytes", samples, _SMALL, _SMALL, numbers=False),
        "Parquet, numbers, files of 1,000,000 rows": write_parquet(folder / "large", samples, _LARGE, 50_000, numbers=True),
        "Parquet, bytes, files of 1,000,000 rows": write_parquet(folder / "large-bytes", samples, _LARGE, 50_000, numbers=False),
        "JSON Lines, files of 1,000 lines": write_json_lines(folder / "small-lines", samples, _SMALL),
        "JSON Lines, files of 1,000,000 lines": write_json_lines(folder / "large-lines", samples, _LARGE),
    }
    with installation(folder) as services:
        yield [
            Case(name, None, ingestion_side(services, dataset, samples, samples), None, [Path(dataset.base_path)])
            for name, dataset in datasets.items()
        ]


FIGURE = Figure(
    "l", "indexing of files that code of others reads", "samples/s", samples=2_000_000, smoke_samples=3_000, prepare=prepare
)
