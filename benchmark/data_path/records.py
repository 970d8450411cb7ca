"""Records of figures a, b, c and k, of 160 bytes as in the paper (7.3) in files of 180,000, and the parsers of both sides.

A record is a label (int64) and 38 float32: what a sample of the paper's Criteo files holds.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np

from benchmark.data_path.contents import NUMBERS
from modyn.config.dataset import DatasetConfig

RECORD_BYTES, LABEL_BYTES, FEATURES = 160, 8, 38
RECORDS_PER_FILE = 180_000
BATCH_SIZE = 65_536

PER_SAMPLE = """
def bytes_parser_function(data: memoryview) -> torch.Tensor:
    return torch.frombuffer(data, dtype=torch.float32)
"""
LAYOUT = {"dtype": "float32", "shape": [FEATURES]}
BATCH = """
def batch_parser_function(data, offsets):
    return torch.from_numpy(data.reshape(len(offsets) - 1, -1).view(np.float32))
"""


def write_records(folder: Path, num_records: int) -> Path:
    """Write `num_records` records in files of RECORDS_PER_FILE, one second apart, and return their folder. Feature 0 of record i is i % NUMBERS."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    kind = np.dtype([("label", "<i8"), ("features", "<f4", (FEATURES,))])
    assert kind.itemsize == RECORD_BYTES
    records = np.empty(RECORDS_PER_FILE, kind)
    records["features"] = random.normal(size=(RECORDS_PER_FILE, FEATURES))
    for number, first in enumerate(range(0, num_records, RECORDS_PER_FILE)):
        count = min(RECORDS_PER_FILE, num_records - first)
        records["label"] = np.arange(first, first + RECORDS_PER_FILE) % 2
        records["features"][:, 0] = np.arange(first, first + RECORDS_PER_FILE) % NUMBERS
        path = folder / f"{number:05d}.bin"
        records[:count].tofile(path)
        os.utime(path, (1_000_000 + number, 1_000_000 + number))
    return folder


def records_dataset(name: str, folder: Path) -> DatasetConfig:
    options = {"record_size": RECORD_BYTES, "label_size": LABEL_BYTES, "byteorder": "little"}
    return DatasetConfig(name=name, base_path=folder, file_wrapper="BinaryFileWrapper", file_wrapper_config=options, watch=False)


def write_flat(source: Path, path: Path) -> Path:
    """Write all records of `source` to one file, for sides that map one file, and return its path."""
    with path.open("wb") as flat:
        for file in sorted(source.iterdir()):
            with file.open("rb") as opened:
                shutil.copyfileobj(opened, flat, 1 << 24)
    return path
