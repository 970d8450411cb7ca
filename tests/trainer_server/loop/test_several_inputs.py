"""A model with several inputs is trained, stored and evaluated as one with a single input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from modyn.evaluator.config import load_dataset
from modyn.evaluator.evaluate import EvaluationInput, evaluate
from modyn.evaluator.records import InIntervals
from modyn.models import MODELS
from modyn.models.weights import build_model
from modyn.records import Interval
from modyn.testing.fake_storage import FakeStorage
from modyn.trainer_server.loop.seeding import derived_seed, seed_everything
from tests.support.plugins import installed
from tests.support.training import NUM_CLASSES, MemoryData, features_of, payload_of, small_pipeline, train_in_memory

PAIR = """
import torch
from modyn.config.base import Section


class Config(Section):
    width: int = 8


class Pair(torch.nn.Module):
    Config = Config

    def __init__(self, config):
        super().__init__()
        self.left, self.right = torch.nn.Linear(2, config.width), torch.nn.Linear(4, config.width)
        self.output = torch.nn.Linear(config.width, 10)

    def forward(self, left, right):
        return self.output(torch.relu(self.left(left) + self.right(right)))
"""
PARSER = """
def batch_parser_function(data, offsets):
    rows = torch.from_numpy(data.reshape(len(offsets) - 1, -1).view(np.float32).copy())
    return {}
"""
BY_POSITION, BY_NAME = "(rows[:, :2], rows[:, 2:])", "{'right': rows[:, 2:], 'left': rows[:, :2]}"


@pytest.mark.parametrize("inputs", [BY_POSITION, BY_NAME])
def test_a_model_with_several_inputs_is_trained_and_evaluated(tmp_path: Path, inputs: str) -> None:
    data: dict[str, Any] = {"dataset_id": "fake", "batch_parser_function": PARSER.replace("{}", inputs)}
    pipeline = small_pipeline({"num_samples_to_pass": [37], "drop_last_batch": False}, data=data, model={"id": "Pair"})
    with installed(tmp_path / "plugin", MODELS, "Pair", PAIR, "Pair"):
        found = train_in_memory(pipeline, MemoryData(40), tmp_path)

        seed_everything(derived_seed(7, 0, 1))
        model = build_model("Pair", {})
    rows = torch.from_numpy(np.stack([features_of(key) for key in range(40)]))
    labels = torch.arange(40) % NUM_CLASSES
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for start, stop in ((0, 8), (8, 16), (16, 24), (24, 32), (32, 37)):
        optimizer.zero_grad()
        output = model(rows[start:stop, :2], rows[start:stop, 2:])
        torch.autograd.backward(nn.functional.cross_entropy(output, labels[start:stop]))
        optimizer.step()
    assert all(torch.equal(found.weights[name], value) for name, value in model.state_dict().items())

    fake = FakeStorage()
    fake.add_dataset("fake")
    fake.add_samples("fake", range(40), labels.tolist(), [payload_of(key) for key in range(40)])
    dataset = load_dataset({**data, "batch_size": 16, "metrics": [{"name": "Accuracy"}]})
    (score,) = evaluate(model, EvaluationInput(dataset, InIntervals([Interval()]), fake.client(), fake.payload_client()))
    right = model(rows[:, :2], rows[:, 2:]).argmax(1) == labels
    assert score.value == pytest.approx(right.float().mean().item())
