"""Forgetting: events counted by hand, what is remembered, and that a training that was ended anywhere remembers the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from modyn.dataset.batch import Batch
from modyn.errors import CancelledError, ConfigError
from modyn.trainer_server.check import check
from modyn.trainer_server.downsampling.policies import downsampling_policies
from modyn.trainer_server.downsampling.policies.forgetting import Forgetting
from modyn.trainer_server.downsampling.policies.policy import Candidates, Draw
from modyn.trainer_server.downsampling.policies.sampling import NO_CLASS
from modyn.trainer_server.downsampling.policies.scoring_model import ScoringModel
from modyn.trainer_server.loop.criterion import Criterion
from modyn.trainer_server.request.config import CriterionConfig
from tests.support.training import MemoryData, RecordedReport, TrainingRoom, small_pipeline, train_in_memory

PASSES = ["0011100", "0101011", "1111111", "0000000", "1010101", "1110000"]
"""For each sample, whether each pass classifies it rightly."""
EVENTS = [1, 2, 0, -1, 3, 1]


def forgetting(**config: Any) -> Forgetting:
    (found,) = downsampling_policies({"downsampling_config": {"strategy": "Forgetting", "ratio": 50, **config}}).values()
    assert isinstance(found, Forgetting)
    return found


def scored(policy: Forgetting, epoch: int, keys: list[int]) -> Tensor:
    """Scores of samples whose logits say what PASSES does, of label 0; also remembered."""
    right = torch.tensor([PASSES[key][epoch] == "1" for key in keys])
    logits = torch.stack((right.float(), 1 - right.float()), 1)
    batch = Batch(torch.tensor(keys), logits, torch.zeros(len(keys), dtype=torch.int64), torch.ones(len(keys)), epoch)
    scores = policy.scored(ScoringModel(nn.Identity(), Criterion(CriterionConfig(name="CrossEntropyLoss"))), batch)
    policy.remember(Candidates(scores.numpy(), np.zeros(len(keys), np.int64), np.array(keys)))
    return scores


@pytest.mark.parametrize("restored_after", [None, 0, 3])
def test_events_are_counted_from_pass_to_pass(restored_after: int | None) -> None:
    policy, found = forgetting(), torch.zeros(0)
    for epoch in range(7):
        order = np.random.default_rng(epoch).permutation(6).tolist()
        scores = torch.cat([scored(policy, epoch, order[:4]), scored(policy, epoch, order[4:])])
        found = scores[np.argsort(order)]
        if epoch == restored_after:
            state, policy = policy.state(), forgetting()
            policy.load_state(state)
    assert found[:, 0].tolist() == EVENTS
    assert found[:, 1].tolist() == [float(passes[-1]) for passes in PASSES]
    candidates = Candidates(found.numpy(), np.full(6, NO_CLASS), np.arange(6))
    chosen = [policy.select(candidates, size, Draw(0, 0, 0)).positions.tolist() for size in (1, 2, 3)]
    assert chosen == [[3], [3, 4], [1, 3, 4]]


def test_twelve_bytes_a_sample_are_remembered() -> None:
    policy = forgetting()
    for epoch in range(5):
        scored(policy, epoch, [0, 1, 2, 3, 4, 5])
    state = policy.state()
    assert sum(value.numel() * value.element_size() for name, value in state.items() if name != "epoch") == 6 * 12


def pipeline_of(first: bool, **config: Any) -> dict[str, Any]:
    training = {
        "epochs_per_trigger": 4,
        "drop_last_batch": False,
        "checkpointing": {"activated": True, "interval": 2},
        "shuffle": True,
    }
    section = {"strategy": "Forgetting", "ratio": 40, "sample_then_batch": first, **config}
    pipeline = small_pipeline(training, selection_strategy={"name": "CoresetStrategy", "downsampling_config": section})
    pipeline["training"]["optimizers"][0]["param_groups"][0]["config"]["lr"] = 1.0
    return pipeline


@pytest.mark.parametrize("every", [11, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("first", [False, True])
def test_a_training_that_is_stopped_anywhere_remembers_the_same(tmp_path: Path, first: bool, every: int) -> None:
    pipeline = pipeline_of(first)
    whole = train_in_memory(pipeline, MemoryData(45), tmp_path / "whole")
    looks = whole.report.looks
    for stop_after in range(1, looks, every):
        room = TrainingRoom(tmp_path / str(stop_after), limits={"report_interval_s": 0})
        with pytest.raises(CancelledError):
            room.train(pipeline, MemoryData(45), RecordedReport(stop_after=stop_after))
        again = room.train(pipeline, MemoryData(45))
        assert again.trained.weights_sha256 == whole.trained.weights_sha256
        assert again.result["downsampling"]["class_shares"] == whole.result["downsampling"]["class_shares"]


def test_what_gives_nothing_to_compare_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="period: 0 makes one only: set period to at least 1, or choose EL2N"):
        forgetting(sample_then_batch=True, period=0)
    pipeline = pipeline_of(True, period=4)
    (problem,) = check(pipeline, RecordedReport())
    assert problem.path == "selection_strategy.downsampling_config.strategy"
    assert "epochs_per_trigger is 4, and a pass comes every 4; raise training.epochs_per_trigger to at least 5" in problem.message
    with pytest.raises(ConfigError, match="compares a pass with the one before, but this training has one"):
        train_in_memory(pipeline, MemoryData(45), tmp_path)
    pipeline = pipeline_of(False)
    pipeline["training"]["optimization_criterion"] = {"name": "MSELoss"}
    assert "scores probabilities of classes, which MSELoss has none of" in str(check(pipeline, RecordedReport()))
