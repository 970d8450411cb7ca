"""Streams for pipelines that learn online: sparse clicks with a growing vocabulary and gradual drift, and durations of taxi rides."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from modyn.client import Client
from modyn.config.dataset import DatasetConfig

DAY: Final = 86_400
FIRST: Final = 0
DAYS, PARTS = 50, 100
"""Days of a stream, and its files: one for each half day, all of whose samples have one timestamp."""
PART_S: Final = DAYS * DAY // PARTS
FIELDS, BUCKETS = 20, 1 << 18
"""Categories of a click, and the features that they are hashed to."""


def position_of(part: int, num_samples: int) -> int:
    """Samples of a stream of `num_samples` before a part of it."""
    return num_samples * part // PARTS


def timestamp_of(part: int) -> int:
    """The timestamp of the samples of a part."""
    return FIRST + part * PART_S


@dataclass(frozen=True)
class OnlineStream:
    """A stream of `DAYS`, and the model that is trained on it. metric: of the evaluations, error: of a score of it. preprocessing: section of the
    pipeline; None: it has none."""

    name: str
    record: Any
    """Type of a record: `label` and `sample`."""
    model: Mapping[str, Any]
    data: Mapping[str, Any]
    criterion: str
    metric: Mapping[str, Any]
    learning_rate: float
    preprocessing: Mapping[str, Any] | None = None

    def error(self, value: float) -> float:
        """Return the error of a value of the metric."""
        return 1 - value if self.metric["name"] == "Accuracy" else value

    def register(self, client: Client, folder: Path, seed: int, num_samples: int) -> str:
        """Make the data of a seed, a file for each part, and register them; return the name of the dataset."""
        name = f"{self.name}-{seed}"
        (folder / name).mkdir(parents=True)
        generator = np.random.default_rng(seed)
        for part in range(PARTS):
            rows = np.empty(position_of(part + 1, num_samples) - position_of(part, num_samples), self.record)
            DRAW[self.name](rows, part / PARTS, np.random.default_rng(seed + 1000), generator)
            path = folder / name / f"{part:03d}.bin"
            rows.tofile(path)
            os.utime(path, (timestamp_of(part), timestamp_of(part)))
        layout = {"record_size": np.dtype(self.record).itemsize, "label_size": 8, "byteorder": "little", "file_extension": ".bin"}
        if np.dtype(self.record)["label"].kind == "f":
            layout["label_type"] = "float"
        config = {"file_wrapper": "BinaryFileWrapper", "file_wrapper_config": layout, "watch": False}
        client.register_dataset(DatasetConfig(name=name, base_path=folder / name, **config))
        client.ingest(name)
        return name


def _clicks(rows: npt.NDArray[Any], time: float, world: np.random.Generator, generator: np.random.Generator) -> None:
    """Categories of a power law whose vocabulary grows to three times its size, and whose weights turn to others little by little."""
    sizes = world.integers(50, 20_000, FIELDS)
    vocabulary = (sizes * (1 + 2 * time)).astype(int)
    category = np.minimum((generator.pareto(1.1, (len(rows), FIELDS)) * sizes / 60).astype(int), vocabulary - 1)
    hashed = (category * 2_654_435_761 + np.arange(FIELDS) * 40_503_551) % BUCKETS
    before, after = world.normal(0, 0.6, (2, BUCKETS))
    angle = np.pi / 2 * time
    logits = (np.cos(angle) * before[hashed] + np.sin(angle) * after[hashed]).sum(1) - 1.0
    rows["sample"] = hashed
    rows["label"] = generator.random(len(rows)) < 1 / (1 + np.exp(-logits))


def _taxi(rows: npt.NDArray[Any], time: float, world: np.random.Generator, generator: np.random.Generator) -> None:
    """Rides over a city whose traffic by the hour, and whose slow quarters, change with the season: the logarithm of minutes."""
    start, end = generator.random((2, len(rows), 2))
    hour, weekend = generator.random(len(rows)) * 24, generator.random(len(rows)) < 2 / 7
    centre = 0.5 + 0.25 * np.array([np.cos(2 * np.pi * time), np.sin(2 * np.pi * time)])
    distance = np.abs(start - end).sum(1)
    rush = np.exp(-(((hour - 8 - 2 * time) / 2) ** 2)) + np.exp(-(((hour - 17.5 + 2 * time) / 2.5) ** 2))
    jam = np.exp(-8 * ((start - centre) ** 2).sum(1)) + np.exp(-8 * ((end - centre) ** 2).sum(1))
    minutes = 2 + 25 * distance * (1 + np.where(weekend, 0.2, 0.9) * rush + 0.7 * jam)
    features = [start, end, np.sin(2 * np.pi * hour / 24)[:, None], np.cos(2 * np.pi * hour / 24)[:, None], weekend[:, None]]
    rows["sample"][:, :7] = np.concatenate(features, 1)
    rows["sample"][:, 7] = distance
    rows["label"] = np.log(minutes) + generator.normal(0, 0.15, len(rows))


DRAW: Final = {"clicks": _clicks, "taxi": _taxi}

STREAMS: Final = {
    stream.name: stream
    for stream in (
        OnlineStream(
            name="clicks",
            record=[("label", "<i8"), ("sample", "<i4", (FIELDS,))],
            model={"id": "SparseLogisticRegression", "config": {"num_features": BUCKETS, "num_classes": 2}},
            data={"record_layout": {"dtype": "int32", "shape": [FIELDS]}},
            criterion="CrossEntropyLoss",
            metric={"name": "Accuracy"},
            learning_rate=0.1,
        ),
        OnlineStream(
            name="taxi",
            record=[("label", "<f8"), ("sample", "<f4", (8,))],
            model={"id": "MLP", "config": {"input_size": 8, "hidden_sizes": [64], "num_classes": 1}},
            data={
                "record_layout": {"dtype": "float32", "shape": [8]},
                "label_transformer_function": "def label_transformer_function(labels):\n    return labels.float()[:, None]\n",
            },
            criterion="MSELoss",
            metric={"name": "MeanSquaredError"},
            learning_rate=0.02,
        ),
    )
}
