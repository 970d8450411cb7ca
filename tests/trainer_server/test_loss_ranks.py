"""What a training tells a sampler of the cache that chooses by losses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from modyn.dataset.batch import Batch
from modyn.trainer_server.config import CriterionConfig
from modyn.trainer_server.criterion import Criterion
from modyn.trainer_server.loss_ranks import LossRanks


def run(name: str, ranked: list[tuple[list[int], list[float]]] | None, num_batches: int = 3) -> None:
    def rank(keys: Any, losses: Any) -> None:
        assert ranked is not None
        ranked.append((keys.tolist(), np.round(losses, 3).tolist()))

    criterion = Criterion(CriterionConfig(name=name))
    training: Any = SimpleNamespace(
        components=SimpleNamespace(criterion=criterion), rank_samples=None if ranked is None else rank
    )
    hook = LossRanks()
    for number in range(num_batches):
        keys = torch.tensor([2 * number, 2 * number + 1])
        batch = Batch(keys, torch.zeros(2, 1), torch.tensor([0.0, 1.0]), torch.ones(2))
        hook.on_output(training, batch, torch.tensor([0.5, float(number)], requires_grad=True))


def test_losses_of_each_batch_come_with_the_next_one() -> None:
    ranked: list[tuple[list[int], list[float]]] = []
    run("MSELoss", ranked)
    assert ranked == [([0, 1], [0.25, 1.0]), ([2, 3], [0.25, 0.0])]


def test_nothing_is_computed_for_other_samplers() -> None:
    run("MSELoss", None)


def test_a_loss_without_samples_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the training goes on."""
    monkeypatch.setattr(torch.nn.MSELoss, "forward", lambda _, output, labels: ((output - labels) ** 2).mean())
    ranked: list[tuple[list[int], list[float]]] = []
    run("MSELoss", ranked)
    assert ranked == []
