"""Shared parts of the figures about real samples: JPEG files of about 100 KB, and epochs over them with and without a cache.

Samples are decoded and resized, which a cache may keep, and cropped and mirrored at random, which is done again for each use.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image

from benchmark.data_path.installation import Installation, installation
from modyn.cache.keys import NAMESPACE_BYTES, TierName
from modyn.cache.tiers.memory_tier import MemoryTier
from modyn.cache.tiers.stores import clear_memory, clear_redis
from modyn.cache.tiers.tier import StoreName, TierPlace
from modyn.config.dataset import DatasetConfig
from modyn.dataset.cached.cache_source import CacheSource
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetSource
from modyn.dataset.loader import BatchLoader
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.records import TriggerSetInfo
from modyn.state_folders import shared_folder

BATCH_SIZE = 64
SIDE, RESIZED, CROPPED = 530, 256, 224
_DISTINCT = 200
"""Making an image takes longer than decoding it: the files repeat after this number."""
DECODED_BYTES = 3 * RESIZED * RESIZED
T = TypeVar("T")

PARSER = f"""
import io
from PIL import Image

def bytes_parser_function(data):
    image = Image.open(io.BytesIO(data)).convert("RGB").resize(({RESIZED}, {RESIZED}), Image.BILINEAR)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
"""
CROP = f"""lambda image: (lambda x, y, mirror: image[:, y : y + {CROPPED}, x : x + {CROPPED}].flip(-1) if mirror
else image[:, y : y + {CROPPED}, x : x + {CROPPED}])(*torch.randint(0, {RESIZED - CROPPED}, (2,)).tolist(), torch.rand(()) < 0.5)"""
DATA = DataConfig(dataset_id="images", bytes_parser_function=PARSER, random_transformations=(CROP.replace("\n", " "),))


def write_images(folder: Path, num_files: int) -> tuple[Path, float]:
    """Write JPEG files of SIDE x SIDE pixels, each with a label file. Returns the folder, and the mean bytes of a file."""
    folder.mkdir(parents=True)
    images = [_jpeg(number) for number in range(min(_DISTINCT, num_files))]
    for number in range(num_files):
        stem = folder / f"{number:06d}"
        stem.with_suffix(".jpg").write_bytes(images[number % len(images)])
        stem.with_suffix(".label").write_text(str(number % 10))
    return folder, sum(map(len, images)) / len(images)


def _jpeg(number: int) -> bytes:
    generator = np.random.default_rng(number)
    slope = np.linspace(0, 160, SIDE)[:, None, None] + np.linspace(0, 60, SIDE)[None, :, None]
    pixels = np.clip(slope + generator.normal(20, 22, (SIDE, SIDE, 3)), 0, 255).astype(np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "JPEG", quality=82)
    return content.getvalue()


@dataclass(frozen=True, slots=True)
class Images:
    """Images of a running installation, as a trigger set."""

    services: Installation
    trigger_set: TriggerSetInfo
    mean_bytes: float
    """Mean bytes of a file."""
    data: DataConfig = DATA
    decoded_bytes: int = DECODED_BYTES
    """Bytes of a decoded sample."""
    over_flight: bool = False
    """Whether payloads are read over Flight, like from another machine; if False, from the files directly."""

    def cache(self, store: StoreName, budgets: Mapping[TierName, int]) -> CacheSource:
        """Return an empty cache; the content of an earlier one is forgotten. Args: budgets: in bytes."""
        namespace = os.urandom(NAMESPACE_BYTES)
        places = {name: TierPlace(name, namespace, budget) for name, budget in budgets.items() if budget}
        self.clear()
        return CacheSource(store, str(self.folder) if store == "memory" else self.redis_url, places)

    def clear(self) -> None:
        """Forget what any cache here holds, and its budgets."""
        clear_memory(self.folder)
        if self.redis_url:
            clear_redis(self.redis_url)

    @property
    def folder(self) -> Path:
        """Folder of caches in shared memory: that of the services, which is removed when they end."""
        return shared_folder(self.services.config.state_dir)

    @property
    def redis_url(self) -> str:
        """URL of the embedded Redis; empty: none runs."""
        return self.services.config.resolved_redis_url() or ""

    def budget(self, share: float) -> int:
        """Return the bytes that hold this share of the decoded samples."""
        tier = MemoryTier(TierPlace("decoded", bytes(NAMESPACE_BYTES), 0), self.folder)
        return int(share * self.trigger_set.num_keys * tier.charge(self.decoded_bytes + 256))

    def source(self, cache: CacheSource | None) -> DatasetSource:
        """Return what a training opens to read them."""
        config = self.services.config
        if self.over_flight:
            config = config.model_copy(update={"storage": config.storage.model_copy(update={"short_cut": "off"})})
        return DatasetSource(config, self.data.dataset_id, 1, cache)

    @contextmanager
    def batches(self, cache: CacheSource | None, epochs: int, workers: int, seed: int = 0) -> Iterator[tuple[BatchLoader, int]]:
        """Return the batches of all epochs, and their number in an epoch."""
        options = LoadOptions(BATCH_SIZE, drop_last=False, shuffle=True, seed=seed, epochs=epochs)
        dataset = TriggerSetDataset(self.trigger_set, self.data, self.source(cache).connect, options)
        with BatchLoader(dataset, workers) as loader:
            yield loader, dataset.num_batches

    def read(self, cache: CacheSource | None, epochs: int, workers: int, seed: int = 0) -> list[float]:
        """Return the seconds of each epoch. The first epoch begins with its first batch: the start of processes does not count."""
        ends: list[float] = []
        seen = 0
        with self.batches(cache, epochs, workers, seed) as (loader, _):
            for batch in loader:
                if not ends:
                    ends.append(time.perf_counter())
                seen += len(batch)
                if seen % self.trigger_set.num_keys == 0:
                    ends.append(time.perf_counter())
        if len(ends) != epochs + 1:
            raise RuntimeError(f"{seen} samples came, not {epochs} times {self.trigger_set.num_keys}")
        return list(np.diff(ends))


@contextmanager
def images(num_files: int) -> Iterator[Images]:
    """Make files and services, and remove them at the end."""
    with tempfile.TemporaryDirectory(prefix="modyn-cache-") as name:
        folder, mean_bytes = write_images(Path(name) / "images", num_files)
        with served(folder, num_files, ".jpg") as (services, trigger_set):
            yield Images(services, trigger_set, mean_bytes)


@contextmanager
def served(folder: Path, num_files: int, extension: str) -> Iterator[tuple[Installation, TriggerSetInfo]]:
    """Start services with files and labels as the dataset `images`, and make all of it a trigger set."""
    torch.set_num_threads(1)
    dataset = DatasetConfig(
        name=DATA.dataset_id,
        base_path=str(folder),
        file_wrapper="SingleSampleFileWrapper",
        file_wrapper_config={"file_extension": extension, "label_file_extension": ".label"},
        watch=False,
    )
    with installation(folder.parent) as services:
        services.ingest(dataset, num_files)
        yield services, services.trigger_set("images", dataset.name, num_files)


def command(figure: str, options: argparse.Namespace) -> str:
    """Return the figure with all of its options, for a report."""
    given = {
        name.replace("_", "-"): " ".join(map(str, value)) if isinstance(value, list) else value
        for name, value in vars(options).items()
        if name != "report"
    }
    return " ".join([f"python -m benchmark.cache {figure}", *(f"--{name} {value}" for name, value in given.items()), "--report"])


def compared(rounds: int, ours: Callable[[], float], theirs: Callable[[], float]) -> tuple[list[float], list[float]]:
    """Return the seconds of both sides, as `in_turn`."""
    return in_turn(rounds, ours, theirs)


def in_turn(rounds: int, ours: Callable[[], T], theirs: Callable[[], T]) -> tuple[list[T], list[T]]:
    """Run both sides in turn and return their results. The order changes from round to round; the first round does not count."""
    measured: tuple[list[T], list[T]] = ([], [])
    for number in range(rounds + 1):
        for side in (0, 1) if number % 2 else (1, 0):
            found = (ours, theirs)[side]()
            if number:
                measured[side].append(found)
    return measured


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return how many times faster our side is, by medians."""
    return statistics.median(theirs) / statistics.median(ours)
