"""Streams whose changes are known: digits that look different from time to time or whose labels are wrong, and a rotating hyperplane.

All are cut into years of 365 days, a file of fixed-size records for each month, with a training and a test part of the same year.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from modyn.client import Client
from modyn.config.dataset import DatasetConfig

YEAR: Final = 365 * 86_400
FIRST: Final = -60 * YEAR
"""Start of the first year, 1910: a hundred years later is still in the past, which storage asks of samples."""
Floats = npt.NDArray[np.float32]
SIDE: Final = 8
Draw = Callable[[int, int, np.random.Generator, bool], tuple[Floats, npt.NDArray[np.int64]]]
"""(year, number, generator, whether they are for testing) → samples and labels in random order."""


@dataclass(frozen=True)
class Stream:
    """A stream, and the model that is trained on it. `changes`: year → what happens from its start on."""

    name: str
    years: int
    train_a_year: int
    test_a_year: int
    changes: Mapping[int, str]
    model: Mapping[str, Any]
    training: Mapping[str, Any]
    shape: tuple[int, ...]
    draw: Draw

    @property
    def data(self) -> dict[str, Any]:
        """Return the fields of `data` that describe a record."""
        return {"record_layout": {"dtype": "float32", "shape": list(self.shape)}}

    def register(self, client: Client, folder: Path, seed: int) -> tuple[str, str]:
        """Make the data of a seed, and register them; return the names of the training and the test dataset."""
        record = np.dtype([("label", "<i8"), ("sample", "<f4", self.shape)])
        names = (f"{self.name}-{seed}-train", f"{self.name}-{seed}-test")
        generator = np.random.default_rng(seed)
        for name in names:
            (folder / name).mkdir(parents=True)
        for year in range(self.years):
            for name, count in zip(names, (self.train_a_year, self.test_a_year), strict=True):
                samples, labels = self.draw(year, count, generator, name.endswith("test"))
                # Twelve files a year: the time of a sample is that of its file.
                for month, share in enumerate(np.array_split(np.arange(count), 12)):
                    rows = np.empty(len(share), record)
                    rows["label"], rows["sample"] = labels[share], samples[share]
                    path = folder / name / f"{year:03d}-{month:02d}.bin"
                    rows.tofile(path)
                    when = FIRST + year * YEAR + month * YEAR // 12
                    os.utime(path, (when, when))
        for name in names:
            layout = {"record_size": record.itemsize, "label_size": 8, "byteorder": "little", "file_extension": ".bin"}
            client.register_dataset(
                DatasetConfig(
                    name=name,
                    base_path=folder / name,
                    file_wrapper="BinaryFileWrapper",
                    file_wrapper_config=layout,
                    watch=False,
                )
            )
            client.ingest(name)
        return names


def _digits(
    look: Callable[[int, Floats], Floats],
    year: int,
    count: int,
    generator: np.random.Generator,
    is_test: bool,
    wrong_labels: float = 0.0,
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Digits of scikit-learn with noise; the images of training and test are different ones.

    Args: look: (year, image) → how it looks. wrong_labels: share of the labels for training that are drawn at random.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    part = np.arange(len(digits.target)) % 3 == 0
    chosen = generator.choice(np.flatnonzero(part if is_test else ~part), count)
    images = np.empty((count, 1, SIDE, SIDE), np.float32)
    for row, index in enumerate(chosen):
        images[row, 0] = look(year, (digits.images[index] / 16).astype(np.float32))
    images += generator.normal(0, 0.1, images.shape).astype(np.float32)
    labels = digits.target[chosen].astype(np.int64)
    if not is_test:
        wrong = generator.random(count) < wrong_labels
        labels[wrong] = generator.integers(0, 10, int(wrong.sum()))
    return images, labels


def _seen_in(year: int, image: Floats) -> Floats:
    if year < 9:
        return image
    if year < 17:
        return 1 - image
    if year < 24:
        return 1 - np.rot90(image)
    faint = 0.3 + 0.4 * image
    if year < 28:
        return faint
    angle = 80 * min(year - 27, 7) / 7
    return np.asarray(Image.fromarray(faint).rotate(angle, Image.Resampling.BILINEAR, fillcolor=0.3), np.float32)


def _inverted(year: int, image: Floats) -> Floats:
    return 1 - image if 3 <= year < 6 else image


def _upright(year: int, image: Floats) -> Floats:
    return image


def _hyperplane(year: int, count: int, generator: np.random.Generator, _: bool) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Points of the unit cube on either side of a plane through its centre, which turns by a degree a year and jumps three times; 5 % of all
    labels are wrong (Hulten, Spencer and Domingos: Mining Time-Changing Data Streams, 2001)."""
    plane = np.random.default_rng(0).normal(size=(4, 2, 10))[sum(year >= jump for jump in (30, 55, 80))]
    angle = np.deg2rad(year)
    first, second = plane / np.linalg.norm(plane, axis=1, keepdims=True)
    points = generator.random((count, 10), np.float32)
    labels = (points - 0.5) @ (np.cos(angle) * first + np.sin(angle) * second) > 0
    wrong = generator.random(count) < 0.05
    return points, (labels ^ wrong).astype(np.int64)


DIGITS: Final = Stream(
    name="digits",
    years=36,
    train_a_year=600,
    test_a_year=200,
    changes={9: "inverted", 17: "turned by 90°", 24: "upright, faint", 28: "turning slowly to 80° until 34"},
    model={
        "id": "SmallCNN",
        "config": {"in_channels": 1, "image_size": SIDE, "num_classes": 10, "width": 8, "embedding_size": 32, "dropout": 0.0},
    },
    training={
        "batch_size": 32,
        "epochs_per_trigger": 10,
        "optimizers": [{"name": "a", "algorithm": "Adam", "param_groups": [{"module": "model", "config": {"lr": 0.003}}]}],
    },
    shape=(1, SIDE, SIDE),
    draw=partial(_digits, _seen_in),
)
HYPERPLANE: Final = Stream(
    name="hyperplane",
    years=100,
    train_a_year=10_000,
    test_a_year=500,
    changes={30: "jumps", 55: "jumps", 80: "jumps", 1: "rotates slowly all the time"},
    model={"id": "MLP", "config": {"input_size": 10, "hidden_sizes": [32], "num_classes": 2}},
    training={
        "batch_size": 128,
        "epochs_per_trigger": 1,
        "optimizers": [{"name": "a", "algorithm": "Adam", "param_groups": [{"module": "model", "config": {"lr": 0.005}}]}],
    },
    shape=(10,),
    draw=_hyperplane,
)
SHIFTED: Final = replace(
    DIGITS,
    name="shifted",
    years=9,
    train_a_year=1500,
    test_a_year=400,
    changes={3: "inverted", 6: "as before"},
    draw=partial(_digits, _inverted),
)
"""Covariate shift: years 3 to 5 look different."""
NOISY: Final = replace(
    DIGITS,
    name="noisy",
    years=9,
    train_a_year=1500,
    test_a_year=400,
    changes={0: "30 % of the labels for training are drawn at random"},
    draw=partial(_digits, _upright, wrong_labels=0.3),
)
DROPOUT: Final = replace(
    NOISY,
    name="dropout",
    changes={0: "none; half of the embedding is dropped in training, and each training has 40 epochs"},
    model={**DIGITS.model, "config": {**DIGITS.model["config"], "dropout": 0.5}},
    training={**DIGITS.training, "epochs_per_trigger": 40},
    draw=partial(_digits, _upright),
)
"""With dropout, a memorised sample still has a loss in training."""
TRIGGER_STREAMS: Final = {stream.name: stream for stream in (DIGITS, HYPERPLANE)}
SELECTION_STREAMS: Final = {stream.name: stream for stream in (SHIFTED, NOISY, DROPOUT)}
