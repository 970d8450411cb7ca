"""Datasets of samples with a column `site`, in each of the formats that have columns."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from modyn.config.dataset import DatasetConfig

FORMATS: dict[str, tuple[str, dict[str, Any], str]] = {
    "csv": ("CsvFileWrapper", {"label_column": "y"}, "site"),
    "numbered": ("CsvFileWrapper", {"label_index": 0, "file_extension": ".csv"}, "1"),
    "json": ("JsonLinesFileWrapper", {"label_field": "y"}, "meta.site"),
    "parquet": ("ParquetFileWrapper", {"label_column": "y", "payload_columns": ["x"]}, "site"),
}
"""File wrapper, its options, and the name of the column, by a name for each."""


def column_dataset(folder: Path, kind: str, name: str = "sites") -> DatasetConfig:
    """The dataset of what `write_sites` writes."""
    folder.mkdir(parents=True, exist_ok=True)
    wrapper, options, _ = FORMATS[kind]
    return DatasetConfig(name=name, base_path=folder, file_wrapper=wrapper, file_wrapper_config=options, watch=False)


def write_sites(folder: Path, kind: str, sites: Sequence[Any], number: int = 0, first: int = 0) -> Path:
    """Write file `number`, a day later than the one before it; its samples have these sites, None for none, and payloads and labels by their place.

    Args: first: number of the first sample in the dataset: its label is that modulo 3.
    """
    labels = [(first + i) % 3 for i in range(len(sites))]
    ending = {"json": "jsonl", "parquet": "parquet"}.get(kind, "csv")
    path = folder / f"{number:04}.{ending}"
    if kind == "parquet":
        payloads = [f"{label} {first + i}".encode() for i, label in enumerate(labels)]
        table = pa.table({"y": pa.array(labels, pa.int64()), "x": pa.array(payloads, pa.binary()), "site": pa.array(sites)})
        pq.write_table(table, path, row_group_size=7)
    elif kind == "json":
        rows = [
            {"y": label, "meta": {"place": 1} if site is None else {"site": site}}
            for label, site in zip(labels, sites, strict=True)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        header = "y,site,x\n" if kind == "csv" else ""
        fields = ["" if site is None else f'"{site}"' if "," in str(site) else str(site) for site in sites]
        path.write_text(
            header + "".join(f"{label},{site},{i}\n" for i, (label, site) in enumerate(zip(labels, fields, strict=True)))
        )
    os.utime(path, (86_400 * (number + 1),) * 2)
    return path
