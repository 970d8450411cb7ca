"""Every kind of training makes the same model with a cache as without, and reads from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from modyn.cache.tier import TierPlace
from modyn.dataset.cache_source import CacheSource
from modyn.dataset.connections import DatasetClients
from tests.support.training import MemoryData, small_pipeline, train_in_memory

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "processes": {"training": {"dataloader_workers": 2}},
    "validation": {"training": {"validation": {"ratio": 25}}},
    "sample then batch": {"downsampling": {"strategy": "Loss", "ratio": 50, "sample_then_batch": True}},
    "batch then sample": {"downsampling": {"strategy": "GradNorm", "ratio": 50, "sample_then_batch": False}},
}

DATA = {
    "dataset_id": "fake",
    "bytes_parser_function": "def bytes_parser_function(data):\n    return torch.frombuffer(bytearray(data), dtype=torch.float32)",
    "deterministic_transformations": ["lambda x: x * 2"],
    "random_transformations": ["lambda x: x + torch.rand(1)"],
}


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    torch.use_deterministic_algorithms(False)


@dataclass(frozen=True)
class CachedData(MemoryData):
    """The same samples, through a cache."""

    folder: Path = field(default=Path())

    def __call__(self) -> DatasetClients:
        source = CacheSource("memory", str(self.folder), {"decoded": TierPlace("decoded", b"twelve bytes", 1 << 22)})
        return replace(super().__call__(), cache=source.open())


@pytest.mark.parametrize("kind", KINDS)
def test_models_are_the_same(kind: str, tmp_path: Path) -> None:
    options = KINDS[kind]
    training = {"epochs_per_trigger": 3, "drop_last_batch": False, "shuffle": True, "seed": 1, **options.get("training", {})}
    sections: dict[str, Any] = {}
    if "downsampling" in options:
        strategy = {"name": "CoresetStrategy", "maximum_keys_in_memory": 16, "downsampling_config": options["downsampling"]}
        sections["selection_strategy"] = strategy
    pipeline = small_pipeline(training, data=DATA, **sections)
    plain = train_in_memory(pipeline, MemoryData(40), tmp_path / "plain")
    cached = train_in_memory(pipeline, CachedData(40, folder=tmp_path / "cache"), tmp_path / "cached")
    assert plain.weights.keys() == cached.weights.keys()
    assert all(torch.equal(value, cached.weights[name]) for name, value in plain.weights.items())
    assert "num_cached" not in plain.result
    assert cached.result["num_cached"]["decoded"] > 0
    if kind == "batch then sample":
        # All candidates are loaded, of which the cache had none in the first epoch.
        assert cached.result["downsampling"]["num_candidates"] == 120
        assert 120 - cached.result["num_cached"]["decoded"] >= 40
    for name in ("loss", "epoch_losses", "validation_losses", "num_samples", "num_steps", "num_skipped"):
        assert cached.result.get(name) == plain.result.get(name)
