"""Samples that reveal every mistake: payload, label and weight follow from the key, so each reader can check a sample.

write_keyed_file(folder / "0.bin", range(0, 500), mtime=1000)    # keys are numbers in the order of files and records
keys = checked(batch)                                            # AssertionError if anything belongs to another key
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from modyn.config.dataset import DatasetConfig
from modyn.dataset.batch import Batch
from modyn.records import Float32Array, Int64Array
from tests.support.keyed_weights import weights_of

WORDS = 6
"""Numbers of 8 bytes that a payload begins with; the rest of it, if it has one, is zeros."""

PER_SAMPLE = f"""\
import torch

def bytes_parser_function(data: memoryview) -> torch.Tensor:
    return torch.frombuffer(bytearray(data[:{8 * WORDS}]), dtype=torch.int64)
"""


def words_of(keys: Int64Array) -> Int64Array:
    """What the payloads of `keys` begin with: int64 (n, WORDS), no two alike."""
    mixed = keys.astype(np.uint64)[:, None] * np.uint64(WORDS) + np.arange(WORDS, dtype=np.uint64)
    return (mixed * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)


def labels_of(keys: Int64Array) -> Int64Array:
    return (keys * 7919) % 100_003


def write_keyed_file(path: Path, keys: range, mtime: int, *, mode: str = "wb", payload_bytes: int = 8 * WORDS) -> None:
    """A binary file with the records of `keys`, for `keyed_dataset`; mode "ab" appends them. Payloads longer than their words leave holes."""
    numbers = np.arange(keys.start, keys.stop, dtype=np.int64)
    heads = np.concatenate([labels_of(numbers)[:, None], words_of(numbers)], axis=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode) as file:
        if payload_bytes == 8 * WORDS:
            file.write(heads.tobytes())
        else:
            start = file.tell()
            for row, head in enumerate(heads):
                os.pwrite(file.fileno(), head.tobytes(), start + row * (8 + payload_bytes))
            file.truncate(start + len(heads) * (8 + payload_bytes))
    os.utime(path, (mtime, mtime))


def keyed_dataset(name: str, folder: Path, payload_bytes: int = 8 * WORDS) -> DatasetConfig:
    layout = {"record_size": 8 + payload_bytes, "label_size": 8, "byteorder": "little"}
    return DatasetConfig(
        name=name, base_path=str(folder), file_wrapper="BinaryFileWrapper", file_wrapper_config=layout, watch=False
    )


def keyed_data(dataset: str, *, per_sample: bool = False) -> dict[str, Any]:
    """The `data` section for `keyed_dataset`: by a layout, or by Python code for each sample."""
    if per_sample:
        return {"dataset_id": dataset, "bytes_parser_function": PER_SAMPLE}
    return {"dataset_id": dataset, "record_layout": {"dtype": "<i8", "shape": [WORDS]}}


def checked(batch: Batch, weights: Float32Array | None = None) -> Int64Array:
    """The keys of a batch, all of whose samples are those of their keys. weights: by default what `KeyedWeightsStrategy` gives."""
    keys: Int64Array = batch.keys.numpy()
    assert isinstance(batch.data, torch.Tensor)
    _same("payload", keys, batch.data.numpy(), words_of(keys))
    _same("label", keys, batch.labels.numpy(), labels_of(keys))
    _same("weight", keys, batch.weights.numpy(), weights_of(keys) if weights is None else weights)
    return keys


def joined(parts: Iterable[Int64Array]) -> list[int]:
    """Return all keys in ascending order, for comparison with the expected keys."""
    found: list[int] = np.sort(np.concatenate([np.empty(0, np.int64), *parts])).tolist()
    return found


def _same(what: str, keys: Int64Array, found: Any, expected: Any) -> None:
    assert found.shape == expected.shape, f"{what}: {found.shape} for {len(keys)} keys, not {expected.shape}"
    wrong = np.flatnonzero((found != expected).reshape(len(keys), -1).any(axis=1))
    assert not len(wrong), f"{len(wrong)} of {len(keys)} samples have another's {what}; the first is key {keys[wrong[0]]}"
