"""Samples that are held out: never trained on, the same at every attempt, and what early stopping and plateaus look at."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from modyn.config.base import load_section
from modyn.config.pipeline import ModelReference
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetClients
from modyn.dataset.order.held_out import Share
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.errors import CancelledError
from modyn.models.weights import build_model
from modyn.records import Int64Array, RunId, TriggerSetInfo
from modyn.testing.fakes import FakeModelStorage
from modyn.trainer_server.client import TrainingRequest
from modyn.trainer_server.disk.state_file import read_state_file
from modyn.trainer_server.loop.inputs import TrainingInputs
from modyn.trainer_server.request.config import TrainingConfig
from tests.support.fake_dataset import FakeTriggerSet
from tests.support.training import (
    NUM_CLASSES,
    MemoryData,
    Outcome,
    RecordedReport,
    TrainingRoom,
    context_of,
    features_of,
    payload_of,
    small_pipeline,
    train_in_memory,
)

CHECKPOINTS = {"activated": True, "interval": 1000}


def share(num_keys: int, partition_size: int, percent: int, held_out: bool = True) -> Share:
    return Share(TriggerSetInfo(RunId("memory-0001"), 0, num_keys, partition_size, ""), percent, held_out)


@pytest.mark.parametrize(("num_keys", "partition_size"), [(40, 16), (48, 16), (41, 16), (3, 16), (100, 7)])
@pytest.mark.parametrize("percent", [1, 10, 25, 99])
def test_the_two_shares_of_a_trigger_set_are_its_parts(num_keys: int, partition_size: int, percent: int) -> None:
    shares = [share(num_keys, partition_size, percent, held_out) for held_out in (True, False)]
    sizes = [0, 0]
    for partition in range(-(-num_keys // partition_size)):
        length = min(partition_size, num_keys - partition * partition_size)
        keys = np.arange(length, dtype=np.int64) + partition * partition_size
        rows = [one.rows(keys) for one in shares]
        assert sorted(np.concatenate(rows).tolist()) == list(range(length))
        assert len(rows[0]) == length * percent // 100
        assert all(np.array_equal(one, np.sort(one)) for one in rows)
        # What a plan reckons with: partitions of one size, of which the last may be shorter.
        assert [len(one) for one in rows] == [
            max(0, min(one.partition_size, one.num_keys - partition * one.partition_size)) for one in shares
        ]
        sizes = [size + len(one) for size, one in zip(sizes, rows, strict=True)]
    assert sizes == [one.num_keys for one in shares]


def held_out_keys(data: MemoryData, percent: int) -> list[int]:
    whole = Share(data.trigger_set(RunId("memory-0001"), data.trigger_id), percent, held_out=True, seed=7)
    partitions = np.split(np.arange(data.num_keys, dtype=np.int64), [16, 32])
    return [int(key) for keys in partitions for key in keys[whole.rows(keys)]]


def held_out_of(keys: Int64Array, trigger_id: int, seed: int) -> set[int]:
    """The keys that a training on a trigger set of these keys holds out: 10 % of each partition."""
    pipeline = small_pipeline({"validation": {"ratio": 10}, "seed": seed})
    config = load_section(TrainingConfig, pipeline["training"], "training")
    fake = FakeTriggerSet(keys, 1000, frozenset(), payload_of, trigger_id=trigger_id)
    trigger_set = TriggerSetInfo(RunId("memory-0001"), trigger_id, len(keys), 1000, f"checksum of {len(keys)}")
    request = TrainingRequest(RunId("memory-0001"), trigger_id, pipeline)
    data = load_section(DataConfig, pipeline["data"], "data")
    model = ModelReference(**pipeline["model"])
    inputs = TrainingInputs(request, model, config, data, context_of(FakeModelStorage(), MemoryData(), Path()), trigger_set)
    served = TriggerSetDataset(trigger_set, data, fake, LoadOptions(100, drop_last=False, seed=0), share=inputs.held_out)
    return {key for batch in served for key in batch.keys.tolist()}


def test_trigger_sets_that_overlap_hold_out_the_same_keys() -> None:
    """But for the edge of the share: windows that overlap by 90 percent rank their keys against few others."""
    keys = np.arange(2200, dtype=np.int64)
    first = held_out_of(keys[:2000], 0, seed=7)
    assert len(first) == 200
    assert held_out_of(keys[:2000], 1, seed=7) == first
    shared = {key for key in held_out_of(keys[200:], 1, seed=7) if key < 2000}
    assert len(shared - first) <= 0.1 * len(shared)


def test_the_seed_draws_what_is_held_out() -> None:
    keys = np.arange(2000, dtype=np.int64)
    first, second = (held_out_of(keys, 0, seed) for seed in (7, 8))
    assert len(first) == len(second) == 200
    assert len(first & second) < 60


def loss_of(outcome: Outcome, pipeline: dict[str, Any], keys: list[int]) -> float:
    """The mean loss of these samples under the trained model."""
    model = build_model("MLP", pipeline["model"]["config"])
    model.load_state_dict(outcome.weights)
    with torch.no_grad():
        outputs = model(torch.stack([torch.from_numpy(features_of(key)) for key in keys]))
    return float(nn.functional.cross_entropy(outputs, torch.tensor([key % NUM_CLASSES for key in keys])))


def test_what_is_held_out_is_measured_and_never_trained_on(tmp_path: Path) -> None:
    pipeline = small_pipeline({"validation": {"ratio": 25}, "epochs_per_trigger": 2, "drop_last_batch": False})
    data = MemoryData(40)
    keys = held_out_keys(data, 25)
    assert len(keys) == 10
    outcome = train_in_memory(pipeline, data, tmp_path / "one")
    assert (outcome.result["num_samples"], outcome.result["num_keys"]) == (60, 40)
    assert outcome.result["validation_losses"][-1] == pytest.approx(loss_of(outcome, pipeline, keys), rel=1e-5)
    assert len(outcome.result["validation_losses"]) == 2
    assert outcome.result["seconds"]["validate"] > 0
    # Other samples in their place change the measure, and not the model.
    other = replace(data, deleted=frozenset(keys[:5]))
    changed = train_in_memory(pipeline, other, tmp_path / "two")
    assert changed.trained.weights_sha256 == outcome.trained.weights_sha256
    assert changed.result["validation_losses"] != outcome.result["validation_losses"]


CLASS_WEIGHTS = {"ignore_index": 3, "weight": [10.0] * 10}


@pytest.mark.parametrize(
    ("strategy", "options", "first", "uses_weights"),
    [
        pytest.param(
            strategy,
            options,
            first,
            uses_weights,
            id=f"{strategy}-{'class weights' if options else 'plain'}-{'samples' if first else 'batches'}-{uses_weights}",
            marks=[] if (bool(options) + first + uses_weights + number) % 2 == 0 and first == (number < 2) else pytest.mark.slow,
        )
        for number, strategy in enumerate(["Loss", "Craig", "GradNorm", "GradMatch"])
        for options in ({}, CLASS_WEIGHTS)
        for first in (False, True)
        for uses_weights in (False, True)
    ],
)
def test_what_is_held_out_counts_as_without_downsampling(
    tmp_path: Path, options: dict[str, Any], strategy: str, first: bool, uses_weights: bool
) -> None:
    """The same model, since it hardly learns: the same loss. The weights of the trigger set count where they do in training, and no others."""
    training = {
        "validation": {"ratio": 25},
        "drop_last_batch": False,
        "optimizers": [{"name": "default", "algorithm": "SGD", "param_groups": [{"config": {"lr": 1e-12}}]}],
        "optimization_criterion": {"name": "CrossEntropyLoss", "config": options},
    }
    found = []
    for downsampling in (None, {"strategy": strategy, "ratio": 50, "sample_then_batch": first}):
        selection = {"name": "CoresetStrategy", "uses_weights": uses_weights, "downsampling_config": downsampling}
        pipeline = small_pipeline(training, selection_strategy=selection)
        found += train_in_memory(pipeline, MemoryData(), tmp_path / f"{downsampling is None}").result["validation_losses"]
    assert found[1] == pytest.approx(found[0], rel=1e-5)


def test_early_stopping_and_plateaus_look_at_what_is_held_out(tmp_path: Path) -> None:
    """Trained far beyond what the samples teach, the training loss falls on and on; that of other samples does not."""
    options: dict[str, Any] = {
        "validation": {"ratio": 50},
        "epochs_per_trigger": 40,
        "early_stopping": {"patience": 2},
        "optimizers": [{"name": "default", "algorithm": "Adam", "param_groups": [{"config": {"lr": 0.03}}]}],
    }
    found = train_in_memory(small_pipeline(options), MemoryData(), tmp_path / "early").result
    losses = found["validation_losses"]
    assert found["num_epochs"] == len(losses) < 40
    assert min(losses) == losses[-3] < min(losses[-2:])
    assert found["epoch_losses"] == sorted(found["epoch_losses"], reverse=True)
    # A plateau of the measure, not of the training loss: each epoch a lower rate, down to none.
    plateau = {"name": "ReduceLROnPlateau", "config": {"patience": 0, "factor": 0.1, "threshold": 0.0}}
    plain = {**options, "early_stopping": None}
    with_plateau = train_in_memory(small_pipeline({**plain, "lr_scheduler": plateau}), MemoryData(), tmp_path / "plateau").result
    without = train_in_memory(small_pipeline(plain), MemoryData(), tmp_path / "without").result
    assert with_plateau["validation_losses"][-1] < without["validation_losses"][-1]


def test_a_trigger_set_that_is_too_small_holds_nothing_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = train_in_memory(small_pipeline({"validation": {"ratio": 1}}), MemoryData(), tmp_path).result
    assert result["num_samples"] == 40
    assert "validation_losses" not in result
    assert "nothing_held_out" in capsys.readouterr().err


@dataclass(frozen=True)
class CountedData(MemoryData):
    """Counts how often readers connect."""

    connected: list[int] = field(default_factory=list)

    def __call__(self) -> DatasetClients:
        self.connected.append(1)
        return super().__call__()


@pytest.mark.parametrize("num_left", [10, 8])
def test_one_loader_serves_what_is_held_out_for_all_epochs(tmp_path: Path, num_left: int) -> None:
    """A pass has two batches; where the samples of the last one are deleted, it ends where the next pass begins."""
    pipeline = small_pipeline({"validation": {"ratio": 25}, "epochs_per_trigger": 5, "drop_last_batch": False})
    keys = held_out_keys(MemoryData(), 25)
    data = CountedData(deleted=frozenset(keys[num_left:]))
    outcome = train_in_memory(pipeline, data, tmp_path)
    assert len(data.connected) == 2  # the training, and all passes
    assert len(set(outcome.result["validation_losses"])) == 5
    assert outcome.result["validation_losses"][-1] == pytest.approx(loss_of(outcome, pipeline, keys[:num_left]), rel=1e-5)
    assert not {"serve", "prefetch-keys"} & {thread.name.rstrip("-0123456789") for thread in threading.enumerate()}


@pytest.mark.parametrize(
    "after", [pytest.param(after, marks=[] if after in (5, 6, 10, 13, 17) else pytest.mark.slow) for after in range(4, 18)]
)
def test_a_stop_at_any_moment_changes_nothing(tmp_path: Path, after: int) -> None:
    """Killed between two steps, and in the middle of a pass over what is held out: an epoch has four batches, and the pass two."""
    options = {
        "validation": {"ratio": 25},
        "epochs_per_trigger": 3,
        "drop_last_batch": False,
        "checkpointing": CHECKPOINTS,
        "shuffle": True,
    }
    pipeline = small_pipeline({**options, "early_stopping": {"patience": 2}})
    pipeline["model"]["config"]["dropout"] = 0.4
    undisturbed = TrainingRoom(tmp_path / "undisturbed").train(pipeline)
    room = TrainingRoom(tmp_path / "disturbed")
    with pytest.raises(CancelledError):
        room.train(pipeline, report=RecordedReport(stop_after=after - 1))
    kept = read_state_file(room.folder / "checkpoints" / "memory-0001.0.checkpoint")
    assert kept["progress"]["batches"] == after // 6 * 4 + min(4, after % 6)
    resumed = room.train(pipeline)
    assert resumed.trained.weights_sha256 == undisturbed.trained.weights_sha256
    assert resumed.result["validation_losses"] == undisturbed.result["validation_losses"]
