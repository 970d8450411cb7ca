"""A small dataset whose labels mean something else from one day on, for tests of runs that learn online."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import numpy as np

from modyn.testing.stack import DAY, NUM_CLASSES, NUM_FEATURES, RECORD, RunningStack, tiny_dataset_config

SAMPLES_A_DAY: Final = 100
WRONG: Final = 0.15
"""Share of the labels that are drawn: no model knows them."""


def shifting_dataset(stack: RunningStack, name: str, num_days: int, shift_day: int, spoilt: range = range(0)) -> None:
    """Write a file a day, register and index them: the feature of a label is another one from `shift_day` on.

    Args: spoilt: keys of samples whose features are no numbers.
    """
    folder: Path = stack.folder / "data" / name
    folder.mkdir(parents=True)
    for day in range(num_days):
        random = np.random.default_rng(day)
        meant = random.integers(0, NUM_CLASSES, SAMPLES_A_DAY)
        records = np.zeros(SAMPLES_A_DAY, RECORD)
        drawn = random.random(SAMPLES_A_DAY) < WRONG
        records["label"] = np.where(drawn, random.integers(0, NUM_CLASSES, SAMPLES_A_DAY), meant)
        records["features"] = 2 * np.eye(NUM_FEATURES, dtype=np.float32)[(meant + (day >= shift_day)) % NUM_CLASSES]
        records["features"] += random.normal(0, 0.1, records["features"].shape)
        keys = np.arange(day * SAMPLES_A_DAY, (day + 1) * SAMPLES_A_DAY)
        records["features"][np.isin(keys, spoilt)] = np.nan
        path = folder / f"day-{day:04d}.bin"
        path.write_bytes(records.tobytes())
        os.utime(path, (day * DAY + DAY // 2,) * 2)
    with stack.client() as client:
        client.register_dataset(tiny_dataset_config(name, folder))
        client.ingest(name)
