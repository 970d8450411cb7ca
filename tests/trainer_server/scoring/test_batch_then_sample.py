"""Batch-then-sample: full batches out of larger ones, no remainder lost, weights without bias, the same after a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modyn.errors import CancelledError, ConfigError, TrainingError
from modyn.models import MODELS
from modyn.models.weights import build_model
from modyn.trainer_server.downsampling.policies import downsampling_of_trigger, downsampling_policies
from modyn.trainer_server.loop.seeding import derived_seed, seed_everything
from tests.support.plugins import installed
from tests.support.training import (
    NUM_CLASSES,
    MemoryData,
    NoModel,
    Outcome,
    RecordedReport,
    TrainingRoom,
    features_of,
    small_pipeline,
    train_in_memory,
)

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

LOSS = {"strategy": "Loss", "ratio": 50}


def pipeline_of(config: dict[str, Any], training: dict[str, Any] | None = None, **selection: Any) -> dict[str, Any]:
    section = {"name": "CoresetStrategy", "maximum_keys_in_memory": 16, "downsampling_config": config, **selection}
    return small_pipeline({"drop_last_batch": False, **(training or {})}, selection_strategy=section)


def initial_model(pipeline: dict[str, Any], trigger_id: int = 0) -> nn.Module:
    seed_everything(derived_seed(7, trigger_id, 1))
    return build_model(pipeline["model"]["id"], pipeline["model"]["config"])


def test_an_epoch_keeps_its_ratio_in_batches_of_nearly_one_size(tmp_path: Path) -> None:
    found = train_in_memory(pipeline_of(LOSS, {"epochs_per_trigger": 3}), MemoryData(45), tmp_path)
    # Batches are chosen out of 15 each: 8, 7 and 8, which is half of 45, rounded.
    assert (found.result["num_batches"], found.result["num_samples"], found.result["num_epochs"]) == (9, 69, 3)
    assert found.report.batches[0].samples_total == 69
    record = found.result["downsampling"]
    assert (record["strategy"], record["mode"]) == ("Loss", "batch_then_sample")
    assert (record["num_candidates"], record["num_chosen"], record["num_selections"]) == (135, 69, 9)
    assert record["effective_epochs"] == pytest.approx(69 / 45)
    assert record["class_shares"]["before"] == pytest.approx({str(c): (5 if c < 5 else 4) / 45 for c in range(10)})
    assert sum(record["class_shares"]["after"].values()) == pytest.approx(1)
    assert record["seconds"].keys() == {"score", "choose"}
    quantiles = list(record["weight_quantiles"].values())
    assert quantiles == sorted(quantiles)
    assert quantiles[0] > 0


def test_schedulers_count_what_is_trained_on(tmp_path: Path) -> None:
    schedule = {"name": "LinearLR", "step_every": "batch", "config": {"total_iters": "MODYN_NUM_BATCHES"}}
    options = {"epochs_per_trigger": 2, "lr_scheduler": schedule, "gradient_accumulation_steps": 2}
    found = train_in_memory(pipeline_of(LOSS, options), MemoryData(45), tmp_path)
    assert (found.result["num_batches"], found.result["num_steps"]) == (6, 4)


def test_a_training_on_everything_is_not_changed_by_a_ratio_of_all(tmp_path: Path) -> None:
    found = train_in_memory(pipeline_of({"strategy": "Loss", "ratio": 7, "ratio_max": 7}), MemoryData(45), tmp_path)
    plain = train_in_memory(small_pipeline({"drop_last_batch": False}), MemoryData(45), tmp_path)
    assert found.trained.weights_sha256 == plain.trained.weights_sha256
    assert "downsampling" not in found.result


def test_the_number_of_samples_is_bounded_by_those_trained_on(tmp_path: Path) -> None:
    found = train_in_memory(pipeline_of(LOSS), MemoryData(45), tmp_path, num_samples_to_pass=30)
    assert (found.result["num_samples"], found.result["num_epochs"]) == (30, 2)


NORMED = """
import torch
from modyn.config.base import Section


class Normed(torch.nn.Sequential):
    Config = Section

    def __init__(self, config):
        super().__init__(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 10))
"""


@pytest.mark.parametrize("num_keys", [33, 40, 41, 42, 45, 49, 81])
def test_batch_norm_never_meets_a_single_sample(tmp_path: Path, num_keys: int) -> None:
    pipeline = pipeline_of({"strategy": "Loss", "ratio": 10}, {"batch_size": 4, "epochs_per_trigger": 2})
    pipeline["model"] = {"id": "Normed"}
    with installed(tmp_path / "plugin", MODELS, "Normed", NORMED, "Normed"):
        found = train_in_memory(pipeline, MemoryData(num_keys), tmp_path)
    assert found.result["num_samples"] == found.report.batches[0].samples_total


def test_a_batch_is_scored_by_the_model_as_it_is_then(tmp_path: Path) -> None:
    """Against a loop by hand that draws as the policy does."""
    from modyn.trainer_server.downsampling.policies.policy import Draw
    from modyn.trainer_server.downsampling.policies.sampling import sample_by_scores

    pipeline = pipeline_of(LOSS, {"epochs_per_trigger": 2})
    found = train_in_memory(pipeline, MemoryData(40), tmp_path)
    model = initial_model(pipeline)
    optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(reduction="none")
    number = 0
    for _ in range(2):
        for start, size in ((0, 7), (14, 7), (28, 6)):
            keys = np.arange(start, min(start + 14, 40))
            inputs, labels = (
                torch.stack([torch.from_numpy(features_of(key)) for key in keys.tolist()]),
                torch.from_numpy(keys % NUM_CLASSES),
            )
            with torch.no_grad():
                scores = torch.cat([loss(model(inputs[i : i + 8]), labels[i : i + 8]) for i in range(0, len(keys), 8)])
            positions, weights = sample_by_scores(scores.numpy(), size, Draw(7, 0, number).generator(), 0.1)
            losses = loss(model(inputs[positions]), labels[positions])
            optimizer.zero_grad()
            torch.autograd.backward(torch.dot(losses, torch.from_numpy(weights)) / size)
            optimizer.step()
            number += 1
    assert all(torch.allclose(found.weights[name], value, atol=1e-6) for name, value in model.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("uses_weights", [False, True])
@pytest.mark.parametrize(
    "criterion",
    [
        {"name": "CrossEntropyLoss"},
        {"name": "CrossEntropyLoss", "config": {"ignore_index": 3, "weight": [1.0, 2.0, 3.0, 4.0, 5.0, 1.0, 2.0, 3.0, 4.0, 5.0]}},
    ],
)
def test_the_gradient_of_all_candidates_is_estimated_without_bias(
    tmp_path: Path, criterion: dict[str, Any], uses_weights: bool
) -> None:
    """One step of SGD with lr 1 moves the weights by the gradient: over many seeds of the draw, its mean is that of all candidates."""
    sgd = [{"name": "default", "algorithm": "SGD", "param_groups": [{"module": "model", "config": {"lr": 1.0}}]}]
    options = {"optimization_criterion": criterion, "optimizers": sgd, "batch_size": 5}
    room = TrainingRoom(tmp_path)
    start = room.train(small_pipeline({**options, "batch_size": 20, "optimizers": [{**sgd[0], "param_groups": [
        {"module": "model", "config": {"lr": 1e-3}}]}]}), MemoryData(20)).stored.version.model_id  # fmt: skip

    def moved(config: dict[str, Any] | None, seed: int, batch_size: int) -> Tensor:
        pipeline = pipeline_of(
            config or {"strategy": "No"}, {**options, "batch_size": batch_size, "seed": seed}, uses_weights=uses_weights
        )
        found = room.train(pipeline, MemoryData(20), parent_model_id=start, trigger_id=1, run_id=f"memory-{seed:04}")
        before = room.weights_of(start)
        return torch.cat([(found.weights[name] - before[name]).flatten() for name in before])

    whole = moved(None, 1, 20)
    estimates = torch.stack([moved({"strategy": "Loss", "ratio": 25}, seed, 5) for seed in range(2, 202)]).double()
    error = estimates.std(0) / len(estimates) ** 0.5
    deviations = (estimates.mean(0) - whole) / error.clamp_min(1e-6)
    assert float(deviations.square().mean()) < 1.6
    assert float(deviations.abs().max()) < 5


CHECKPOINTS = {"activated": True, "interval": 2}


def resumed(folder: Path, pipeline: dict[str, Any], looks: int, data: MemoryData) -> tuple[Outcome, Outcome]:
    """The same training without and with a stop after a number of batches."""
    whole = train_in_memory(pipeline, data, folder / "whole")
    room = TrainingRoom(folder / "stopped")
    with pytest.raises(CancelledError):
        room.train(pipeline, data, RecordedReport(stop_after=looks))
    return whole, room.train(pipeline, data)


@pytest.mark.parametrize(
    ("looks", "workers"),
    [
        pytest.param(looks, workers, marks=[] if (looks == 3) == (workers == 1) else pytest.mark.slow)
        for looks in (1, 3, 7)
        for workers in (1, 2)
    ],
)
def test_a_resumed_training_chooses_the_same(tmp_path: Path, looks: int, workers: int) -> None:
    options = {"epochs_per_trigger": 3, "checkpointing": CHECKPOINTS, "shuffle": True, "dataloader_workers": workers}
    pipeline = pipeline_of(LOSS, options)
    pipeline["model"]["config"]["dropout"] = 0.3
    (tmp_path / "whole").mkdir()
    (tmp_path / "stopped").mkdir()
    whole, again = resumed(tmp_path, pipeline, looks, MemoryData(45))
    assert again.trained.weights_sha256 == whole.trained.weights_sha256
    for name in ("num_candidates", "num_chosen", "num_selections", "class_shares", "weight_quantiles"):
        assert again.result["downsampling"][name] == whole.result["downsampling"][name]


def test_samples_that_are_deleted_meanwhile_are_missed_by_their_batch_only(tmp_path: Path) -> None:
    data = MemoryData(45, deleted=frozenset({*range(16, 32), 40, 41}))
    found = train_in_memory(pipeline_of(LOSS), data, tmp_path)
    # Of 15 each, 8, 7 and 8 would be chosen: of the 15, 1 and 11 that are left, the same shares.
    assert (found.result["num_samples"], found.result["num_skipped"]) == (8 + 1 + 6, 18)


def test_warm_up_goes_by_trigger_number_and_turns_by_it_or_by_a_score(tmp_path: Path) -> None:
    turns = {"downsampling_list": [LOSS, {"strategy": "Loss", "ratio": 20}], "downsampling_thresholds": [4]}
    for selection in ({"downsampling_config": turns}, turns):
        ratios = [
            policy.config.ratio if policy else None
            for policy in (downsampling_of_trigger({**selection, "warmup_triggers": 2}, trigger_id) for trigger_id in range(6))
        ]
        assert ratios == [None, None, 50, 50, 20, 20]
    turns["downsampling_thresholds"] = {"values": [0.6]}
    for section in ({"downsampling_config": turns}, turns):
        selection = {**section, "warmup_triggers": 2}
        policies = [downsampling_of_trigger(selection, *asked) for asked in ((0,), (1, 1), (2, 0), (3, 1), (4, 0))]
        assert [policy.config.ratio if policy else None for policy in policies] == [None, None, 50, 20, 50]
        assert [policy.config.ratio for policy in downsampling_policies(selection).values()] == [50, 20]
    pipeline = pipeline_of(LOSS, warmup_triggers=1)
    assert train_in_memory(pipeline, MemoryData(45), tmp_path).result["num_samples"] == 45
    assert train_in_memory(pipeline, MemoryData(45, trigger_id=1), tmp_path, trigger_id=1).result["num_samples"] == 23


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"downsampling_list": [LOSS, LOSS]}, r"downsampling_thresholds: \[\] is wrong: 2 strategies need 1 trigger numbers"),
        ({"downsampling_list": [LOSS] * 3, "downsampling_thresholds": [4, 4]}, "each larger than the one before"),
        ({"downsampling_list": [LOSS] * 2, "downsampling_thresholds": [-1]}, "a list of trigger numbers, from 0"),
        (
            {"downsampling_list": [LOSS] * 3, "downsampling_thresholds": {"values": [0.8, 0.6]}},
            r"downsampling_thresholds.values: \[0.8, 0.6\] is wrong: 3 strategies need 2 scores, each larger than the one before",
        ),
        ({"downsampling_list": [LOSS] * 3, "downsampling_thresholds": {"values": [0.8]}}, "3 strategies need 2 scores"),
        (
            {"downsampling_list": [LOSS] * 2, "downsampling_thresholds": {"values": ["low"]}},
            r"thresholds.values.0: 'low' is wrong",
        ),
        (
            {"downsampling_list": [LOSS] * 2, "downsampling_thresholds": {"values": [float("nan")]}},
            r"thresholds.values.0: nan is wrong",
        ),
        (
            {"downsampling_list": [LOSS] * 2, "downsampling_thresholds": {"values": [True]}},
            r"thresholds.values.0: true is a boolean",
        ),
        ({"downsampling_list": [LOSS], "downsampling_thresholds": {"values": []}}, r"thresholds.values: \[\] is wrong"),
        ({"downsampling_list": [LOSS] * 2, "downsampling_thresholds": {}}, r"thresholds.values: is required"),
        (
            {"downsampling_list": [LOSS] * 2, "downsampling_thresholds": {"values": [0.8], "metrics": "F1"}},
            "downsampling_thresholds.metrics: there is no such key, did you mean 'metric'",
        ),
        ({"downsampling_list": []}, r"downsampling_list: \[\] is wrong: this is a list of mappings"),
        ({"downsampling_thresholds": [3]}, "downsampling_thresholds: needs downsampling_list"),
        ({"downsampling_config": LOSS, "downsampling_list": [LOSS]}, "replaces downsampling_config"),
        (
            {"downsampling_config": {"downsampling_list": [LOSS], "ratio": 3}},
            "downsampling_config.ratio: there is no such key next to",
        ),
        ({"downsampling_list": [{**LOSS, "ratio": 0}]}, r"downsampling_list\.0\.ratio: 0 is wrong"),
    ],
)
def test_wrong_turns_are_named(selection: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        downsampling_of_trigger(selection, 0)


@pytest.mark.parametrize(
    ("num_keys", "ratio", "samples", "batches"),
    [
        (159, 10, 16, 2),
        (154, 10, 15, 2),
        (31, 50, 16, 2),
        (74, 10, 7, 1),
        (75, 10, 8, 1),
        (40, 10, 4, 1),
        (96, 50, 48, 6),
        (3, 10, 1, 1),
    ],
)
def test_an_epoch_of_any_size_keeps_its_ratio(tmp_path: Path, num_keys: int, ratio: int, samples: int, batches: int) -> None:
    """This holds even if batches would be dropped: no set is too small."""
    pipeline = pipeline_of({"strategy": "Loss", "ratio": ratio}, {"drop_last_batch": True, "epochs_per_trigger": 2})
    found = train_in_memory(pipeline, MemoryData(num_keys), tmp_path)
    assert (found.result["num_samples"], found.result["num_batches"]) == (2 * samples, 2 * batches)
    assert found.result["downsampling"]["num_candidates"] == 2 * num_keys


def test_a_bound_on_samples_is_met_exactly(tmp_path: Path) -> None:
    pipeline = pipeline_of({"strategy": "Loss", "ratio": 50}, {"drop_last_batch": True})
    for bound in (5, 43):
        found = train_in_memory(pipeline, MemoryData(80), tmp_path, num_samples_to_pass=bound)
        assert found.result["num_samples"] == found.report.batches[0].samples_total == bound


def test_a_set_without_a_batch_says_what_was_left_of_it(tmp_path: Path) -> None:
    pipeline = pipeline_of({"strategy": "Loss", "ratio": 10, "sample_then_batch": True}, {"drop_last_batch": True})
    reason = "has 74 samples .* 10 of 100, leaves 7, which do not fill a batch of training.batch_size 8, .*; raise the ratio, or set drop_last"
    with pytest.raises(NoModel, match=reason):
        train_in_memory(pipeline, MemoryData(74), tmp_path)
    with pytest.raises(
        NoModel, match="bounded to 5 samples by num_samples_to_pass, which do not fill a batch .* 8, .*; raise the bound"
    ):
        train_in_memory(pipeline, MemoryData(80), tmp_path, num_samples_to_pass=5)


def test_scores_that_are_nan_end_the_training_as_diverged(tmp_path: Path) -> None:
    sgd = [{"name": "default", "algorithm": "SGD", "param_groups": [{"module": "model", "config": {"lr": 1e30}}]}]
    with pytest.raises(
        TrainingError, match=r"the training diverged: Loss scored sample key \d+ as nan under the model of batch \d of epoch \d"
    ):
        train_in_memory(pipeline_of(LOSS, {"epochs_per_trigger": 5, "optimizers": sgd}), MemoryData(45), tmp_path)
