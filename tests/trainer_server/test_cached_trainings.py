"""Every kind of training makes the same model with a cache as without, and reads from it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from modyn.cache.tiers.tier import TierPlace
from modyn.dataset.cached.cache_source import CacheSource
from modyn.dataset.cached.sampler_loader import PROBED
from modyn.dataset.connections import DatasetClients
from modyn.errors import CancelledError
from modyn.trainer_server.disk.state_file import read_state_file
from tests.support.training import MemoryData, RecordedReport, TrainingRoom, small_pipeline, train_in_memory

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

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


@dataclass(frozen=True)
class CachedData(MemoryData):
    """The same samples, through a cache."""

    folder: Path = field(default=Path())

    def __call__(self) -> DatasetClients:
        source = CacheSource("memory", str(self.folder), {"decoded": TierPlace("decoded", b"twelve bytes", 1 << 22)})
        return replace(super().__call__(), cache=source.open())


def pipeline_of(kind: str, **training: Any) -> dict[str, Any]:
    options = KINDS[kind]
    training = {
        "epochs_per_trigger": 3,
        "drop_last_batch": False,
        "shuffle": True,
        "seed": 1,
        **options.get("training", {}),
        **training,
    }
    sections: dict[str, Any] = {}
    if "downsampling" in options:
        strategy = {"name": "CoresetStrategy", "maximum_keys_in_memory": 16, "downsampling_config": options["downsampling"]}
        sections["selection_strategy"] = strategy
    return small_pipeline(training, data=DATA, **sections)


@pytest.mark.parametrize("kind", KINDS)
def test_models_are_the_same(kind: str, tmp_path: Path) -> None:
    pipeline = pipeline_of(kind)
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


def room_of(folder: Path) -> TrainingRoom:
    """Where trainings share augmented samples."""
    place = TierPlace("augmented", b"twelve bytes", 1 << 22)
    cache = CacheSource("memory", str(folder / "cache"), {"augmented": place}, sampler="coordinated")
    return TrainingRoom(folder, limits={"cache": cache, "report_interval_s": 0, "seconds_saved": lambda *_: 1.5})


@pytest.mark.parametrize(
    "kind",
    ["plain", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind != "plain")],
)
def test_trainings_prepare_samples_for_each_other(kind: str, tmp_path: Path) -> None:
    """The second training finds what the first, which runs meanwhile, has prepared; both train on as many samples as without a cache."""
    pipeline = pipeline_of(kind, epochs_per_trigger=40)
    expected = train_in_memory(pipeline, MemoryData(40), tmp_path / "plain").result
    rooms = [TrainingRoom(tmp_path / str(number), limits=room_of(tmp_path).limits) for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda room: room.train(pipeline, MemoryData(40)).result, rooms))
    for result in results:
        for name in ("num_samples", "num_steps", "num_epochs", "num_skipped"):
            assert result[name] == expected[name]
    if kind != "sample then batch":  # whose samples are of one training
        assert all(result["num_cached"]["augmented"] > 0 for result in results)
        # Those that show how large a value is.
        assert all(
            [result["cache_work"][name] for name in ("read", "decoded", "augmented")] == [PROBED] * 3 for result in results
        )
        assert all(result["cache_saved_s"] == 1.5 for result in results)


@pytest.mark.parametrize(
    ("kind", "without"),
    [
        ("plain", True),
        ("processes", False),
        ("batch then sample", False),
        *(pytest.param(kind, not slow, marks=pytest.mark.slow) for kind, slow in (("plain", True), ("processes", False))),
        pytest.param("batch then sample", True, marks=pytest.mark.slow),
    ],
)
def test_a_training_resumes_in_its_order(kind: str, without: bool, tmp_path: Path) -> None:
    pipeline = pipeline_of(kind, checkpointing={"activated": True, "interval": 2})
    expected = train_in_memory(pipeline, MemoryData(40), tmp_path / "plain").result
    room = room_of(tmp_path)
    with pytest.raises(CancelledError):
        room.train(pipeline, MemoryData(40), RecordedReport(stop_after=4))
    order = read_state_file(tmp_path / "checkpoints" / "memory-0001.0.checkpoint")["order"]
    assert order["num_samples"] == 40
    result = (TrainingRoom(tmp_path, room.models) if without else room).train(pipeline, MemoryData(40)).result
    for name in ("num_samples", "num_steps", "num_epochs", "num_skipped"):
        assert result[name] == expected[name]


def test_a_training_that_began_in_the_order_of_the_plan_ends_in_it(tmp_path: Path) -> None:
    pipeline = pipeline_of("plain", checkpointing={"activated": True, "interval": 2})
    expected = train_in_memory(pipeline, MemoryData(40), tmp_path / "plain")
    room = TrainingRoom(tmp_path, limits={"report_interval_s": 0})
    with pytest.raises(CancelledError):
        room.train(pipeline, MemoryData(40), RecordedReport(stop_after=4))
    shared = replace(room_of(tmp_path), models=room.models)
    ended = shared.train(pipeline, MemoryData(40))
    assert all(torch.equal(value, ended.weights[name]) for name, value in expected.weights.items())
