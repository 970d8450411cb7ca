"""Ingestion of small files, each one sample with a label file, compared with os.scandir and stat of the same tree."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmark.data_path.figure import Case, Figure, Measured, Setting, Side
from benchmark.data_path.ingestion_side import ingestion_side
from benchmark.data_path.installation import installation
from modyn.config.dataset import DatasetConfig

_SAMPLES_PER_FOLDER = 1000


@contextmanager
def prepare(setting: Setting) -> Iterator[list[Case]]:
    folder = _write_tree(setting.folder / "samples", setting.samples)
    options = {"file_extension": ".png", "label_file_extension": ".label"}
    dataset = DatasetConfig(
        name="samples", base_path=folder, file_wrapper="SingleSampleFileWrapper", file_wrapper_config=options, watch=False
    )
    with installation(setting.folder) as services:
        ours = ingestion_side(services, dataset, setting.samples, setting.samples)
        yield [Case("os.scandir and stat of the tree", 0.3, ours, _scan(folder, setting.samples), [folder])]


def _write_tree(folder: Path, num_samples: int) -> Path:
    """Write sample files of 1 KB and their label files, a thousand of each in a folder: `os.scandir` sees two files a sample."""
    payload = np.random.default_rng(0).bytes(1000)
    for i in range(num_samples):
        inside = folder / f"{i // _SAMPLES_PER_FOLDER:04d}"
        if i % _SAMPLES_PER_FOLDER == 0:
            inside.mkdir(parents=True)
        for path, content in ((inside / f"{i:07d}.png", payload), (inside / f"{i:07d}.label", b"%d" % (i % 1000))):
            path.write_bytes(content)
            os.utime(path, (1_000_000 + i, 1_000_000 + i))
    return folder


def _scan(folder: Path, num_samples: int) -> Side:
    def run(ready: Callable[[], None]) -> Measured:
        ready()
        began = perf_counter()
        num_bytes, num_files, pending = 0, 0, [str(folder)]
        while pending:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir():
                        pending.append(entry.path)
                    else:
                        num_bytes += entry.stat().st_size
                        num_files += 1
        seconds = perf_counter() - began
        if num_files != 2 * num_samples or not num_bytes:
            raise RuntimeError(f"{num_files:,} files were seen, {2 * num_samples:,} were written")
        return Measured(num_samples / seconds)

    return Side("os.scandir and stat", run)


FIGURE = Figure("f", "ingestion of single-sample files", "samples/s", samples=100_000, smoke_samples=1_500, prepare=prepare)
