"""A small dataset whose samples drift, and pipelines on it, for tests of trigger policies on real services."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import numpy as np

from modyn.testing.stack import DAY, NUM_CLASSES, NUM_FEATURES, RECORD, RunningStack, tiny_dataset_config, tiny_pipeline

NUM_DAYS: Final = 12
SAMPLES_A_DAY: Final = 50
SHIFTS: Final = {5: 2, 9: 5}
"""Day → number of features by which the meaning of a feature moves from that day."""
EVERY: Final = {"evaluation_interval_data_points": 25}
WINDOWS: Final = {"windowing_strategy": {"id": "AmountWindowingStrategy", "amount_ref": 50, "amount_cur": 25}}
QUANTILE: Final = {"id": "DynamicQuantileThresholdCriterion", "window_size": 5, "quantile": 0.1}


def write_drifting_files(folder: Path) -> None:
    """Write a file a day: the features of a label move on at the days of `SHIFTS`, so that a model errs and embeddings move.

    A second call writes the same files: with `--dist worksteal` a worker comes back to a module, whose fixtures are then made again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    moved = 0
    for day in range(NUM_DAYS):
        moved = SHIFTS.get(day, moved)
        random = np.random.default_rng(day)
        records = np.zeros(SAMPLES_A_DAY, RECORD)
        records["label"] = random.integers(0, NUM_CLASSES, SAMPLES_A_DAY)
        records["features"] = 2 * np.eye(NUM_FEATURES, dtype=np.float32)[(records["label"] + moved) % NUM_FEATURES] + moved / 5
        records["features"] += random.normal(0, 0.3, records["features"].shape)
        path = folder / f"day-{day:02d}.bin"
        path.write_bytes(records.tobytes())
        os.utime(path, (day * DAY + DAY // 2,) * 2)


def drifting_dataset(stack: RunningStack, name: str) -> None:
    """Register and index the dataset `name`."""
    folder = stack.folder / "data" / name
    write_drifting_files(folder)
    with stack.client() as client:
        client.register_dataset(tiny_dataset_config(name, folder))
        client.ingest(name)


def drifting_pipeline(dataset: str, trigger: dict[str, Any], **sections: Any) -> str:
    """A pipeline on the dataset with this `trigger` section."""
    return tiny_pipeline(dataset, trigger=trigger, **sections)


def drift(*metrics: dict[str, Any], **options: Any) -> dict[str, Any]:
    """A drift trigger that fires when any of `metrics` does."""
    named = {f"{metric['id']}-{number}": {"decision_criterion": QUANTILE, **metric} for number, metric in enumerate(metrics)}
    vote = {"id": "AtLeastN", "n": 1}
    return {"id": "DataDriftTrigger", **EVERY, **WINDOWS, "metrics": named, "aggregation_strategy": vote, **options}
