"""Clicks of `clicks.py` as text files, and as the features that a pipeline with a section `preprocessing` makes of them."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import torch
from torch import Tensor

from benchmark.evidence.proactive_streams import BUCKETS, OnlineStream
from benchmark.online.clicks import CATEGORIES, NUMBERS, ClickStream
from modyn.client import Client
from modyn.config.dataset import DatasetConfig
from modyn.preprocessing import Preprocessing

_ROWS_A_FILE: Final = 10_000
SECTION: Final[Mapping[str, Any]] = {
    "format": "csv",
    "names": ["label", *NUMBERS, *CATEGORIES],
    "columns": {**dict.fromkeys(NUMBERS, "number"), **dict.fromkeys(CATEGORIES, "category")},
    "components": [
        {"id": "Imputer", "columns": list(NUMBERS), "strategy": "mean"},
        {"id": "StandardScaler"},
        {"id": "FeatureHasher", "columns": list(CATEGORIES), "num_features": BUCKETS},
    ],
}


class ClickColumns(OnlineStream):
    """Rows of text with a label, 13 numbers and 26 categories. Labels are independent of them, since only time is measured."""

    def register(self, client: Client, folder: Path, seed: int, num_samples: int) -> str:
        """Write the rows of a seed as CSV, and register them; return the name of the dataset."""
        name = f"{self.name}-{seed}"
        (folder / name).mkdir(parents=True)
        for number, columns in enumerate(ClickStream(num_samples, seed).batches(_ROWS_A_FILE)):
            path = folder / name / f"{number:05d}.csv"
            path.write_bytes(csv_of(columns, _labels(seed, number, len(columns[NUMBERS[0]]))))
            os.utime(path, (number, number))
        options = {"label_index": 0}
        client.register_dataset(
            DatasetConfig(
                name=name, base_path=str(folder / name), file_wrapper="CsvFileWrapper", file_wrapper_config=options, watch=False
            )
        )
        client.ingest(name)
        return name

    def transformed(self, num_batches: int, batch_size: int) -> list[tuple[dict[str, Tensor], Tensor]]:
        """Return features and labels of the first batches. Each batch updates the statistics before it is transformed."""
        preprocessing, found = Preprocessing(SECTION), []
        for number, columns in enumerate(ClickStream(num_batches * batch_size).batches(batch_size)):
            features = preprocessing.update_and_transform(columns).to_torch()
            assert isinstance(features, dict)
            found.append((features, torch.from_numpy(_labels(0, number, batch_size))))
        return found


def csv_of(columns: Mapping[str, pa.Array], labels: np.ndarray[Any, np.dtype[np.int64]]) -> bytes:
    """Return lines of text, the label first; missing values are empty."""
    file = io.BytesIO()
    options = pacsv.WriteOptions(include_header=False, quoting_style="none")
    pacsv.write_csv(pa.table({"label": pa.array(labels), **columns}), file, options)
    return file.getvalue()


def _labels(seed: int, number: int, size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return (np.random.default_rng((seed, number)).random(size) < 0.25).astype(np.int64)


CLICK_COLUMNS: Final = ClickColumns(
    name="columns",
    record=None,
    model={"id": "SparseLogisticRegression", "config": {"num_features": BUCKETS, "num_dense": len(NUMBERS), "num_classes": 2}},
    data={},
    criterion="CrossEntropyLoss",
    metric={"name": "Accuracy"},
    learning_rate=0.1,
    preprocessing=SECTION,
)
