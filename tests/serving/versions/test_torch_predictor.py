"""Modules of PyTorch as predictors: signatures from what they take and return."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from modyn.errors import ConfigError, InvalidArgumentError
from modyn.models.export import ModelInput, parse_input
from modyn.models.weights import build_model
from modyn.serving.messages.json_tensors import from_bytes
from modyn.serving.messages.signature import TensorSignature
from modyn.serving.versions.predictor import warm_up
from modyn.serving.versions.torch_predictor import TorchPredictor, inputs_of


@pytest.mark.parametrize(
    ("model", "config", "shape"),
    [
        ("MLP", {"input_size": 4, "num_classes": 3, "dropout": 0.5}, (4,)),
        ("LogisticRegression", {"input_size": 4, "num_classes": 3}, (4,)),
        ("SmallCNN", {"num_classes": 3, "image_size": 8, "width": 2, "embedding_size": 4}, (1, 8, 8)),
        ("ResNet18", {"num_classes": 3, "small_input": True}, (3, -1, -1)),
    ],
)
def test_our_models_say_what_they_take(model: str, config: dict[str, Any], shape: tuple[int, ...]) -> None:
    network = build_model(model, config)
    predictor = TorchPredictor(network, inputs_of(model, config))
    assert predictor.signature.inputs == (TensorSignature("input", "FP32", (-1, *shape)),)
    assert predictor.signature.outputs == (TensorSignature("output", "FP32", (-1, 3)),)
    warm_up(predictor, 2)
    values = np.random.default_rng(0).random((5, *(abs(size) * 8 if size == -1 else size for size in shape))).astype(np.float32)
    found = predictor.predict({"input": values})["output"]
    with torch.no_grad():
        expected = network.eval()(torch.from_numpy(values)).numpy()
    np.testing.assert_array_equal(found, expected)
    read_only = from_bytes("input", "FP32", values.shape, values.tobytes())
    np.testing.assert_array_equal(predictor.predict({"input": read_only})["output"], expected)


@pytest.mark.gpu
def test_predictions_on_a_gpu() -> None:
    config = {"input_size": 4, "num_classes": 3}
    network, taken = build_model("MLP", config), inputs_of("MLP", config)
    values = np.random.default_rng(0).random((64, 4)).astype(np.float32)
    on_cpu = TorchPredictor(network, taken).predict({"input": values})["output"]
    on_gpu = TorchPredictor(network, taken, "cuda:0")
    warm_up(on_gpu, 2)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: on_gpu.predict({"input": values})["output"], range(20)):
            np.testing.assert_allclose(found, on_cpu, rtol=1e-3, atol=1e-5)


class Named(nn.Module):
    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": (tokens * mask).sum(1), "half": tokens.to(torch.bfloat16)}


def test_inputs_and_outputs_by_name() -> None:
    predictor = TorchPredictor(Named(), [parse_input("tokens=4:int64"), parse_input("mask=4:bool")])
    assert predictor.signature.inputs == (TensorSignature("tokens", "INT64", (-1, 4)), TensorSignature("mask", "BOOL", (-1, 4)))
    assert predictor.signature.outputs == (TensorSignature("sum", "INT64", (-1,)), TensorSignature("half", "FP32", (-1, 4)))
    found = predictor.predict({"tokens": np.array([[1, 2, 3, 4]]), "mask": np.array([[True, False, True, False]])})
    assert found["sum"].tolist() == [4]


class Pair(nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return left + right, left


def test_inputs_and_outputs_by_position() -> None:
    predictor = TorchPredictor(Pair(), [ModelInput((2,)), ModelInput((2,))])
    assert [tensor.name for tensor in predictor.signature.inputs] == ["input_0", "input_1"]
    assert [tensor.name for tensor in predictor.signature.outputs] == ["output_0", "output_1"]


def test_what_cannot_be_served() -> None:
    with pytest.raises(
        ConfigError, match=r"Linear does not take the inputs input FP32 \[-1, 3\]: .* correct serving.inputs, or --input"
    ):
        TorchPredictor(nn.Linear(4, 2), [ModelInput((3,))])

    class Mean(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean()

    class Text(nn.Module):
        def forward(self, x: torch.Tensor) -> str:
            return "cat"

    with pytest.raises(ConfigError, match=r"Mean returns 'output' of shape \[\] for 2 rows; return a row for each"):
        TorchPredictor(Mean(), [ModelInput((3,))])
    with pytest.raises(InvalidArgumentError, match="the model returns a str as 'output'"):
        TorchPredictor(Text(), [ModelInput((3,))])
