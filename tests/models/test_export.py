"""A model as a program of torch alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from modyn.errors import InvalidArgumentError
from modyn.models.calls import forward
from modyn.models.export import ModelInput, export_program, feature_inputs, parse_input
from modyn.models.weights import build_model
from modyn.preprocessing import Features, Preprocessing
from tests.support.column_samples import DENSE, SPARSE, columns_of


@pytest.mark.parametrize("text", ["", "a", "1,", "-1", "1x2", "=3", "3:float"])
def test_a_text_that_is_not_an_input_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not an input of a model; .* 1,28,28"):
        parse_input(text)


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ([], "by position, or give each a name"),
        ([ModelInput((2,)), ModelInput((2,), name="x")], "by position, or give each a name"),
        ([ModelInput((2,), name="x"), ModelInput((2,), name="x")], "by position, or give each a name"),
        ([ModelInput((2,), "float33")], "torch has no dtype 'float33'"),
    ],
)
def test_inputs_that_cannot_be(tmp_path: Path, inputs: list[ModelInput], reason: str) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        export_program(nn.Linear(2, 2), inputs, tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []


def behind_preprocessing(section: dict[str, Any]) -> tuple[nn.Module, Features]:
    """A model with weights of its own, and features of 40 rows: some of these have no text and no site, so few sparse ones."""
    statistics = Preprocessing(section)
    features = statistics.update_and_transform(columns_of(list(range(40))))
    dense = {"num_dense": statistics.num_dense}
    model = (
        build_model("SparseLogisticRegression", {"num_features": statistics.num_sparse, "num_classes": 3, **dense})
        if statistics.num_sparse
        else build_model("LogisticRegression", {"input_size": statistics.num_dense, "num_classes": 3})
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model.eval(), features


class TwoInputs(nn.Module):
    """Takes its inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, tokens: Tensor, scale: Tensor) -> Tensor:
        scaled: Tensor = self.table(tokens).mean(dim=1) * scale
        return scaled


@pytest.mark.slow  # Nothing else in the gate imports torch's compiler, which takes seconds.
def test_a_program_returns_what_the_model_returns_for_batches_of_any_size(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    for section in (SPARSE, DENSE):
        model, features = behind_preprocessing(section)
        export_program(model, feature_inputs(features.dense.shape[1], features.num_sparse), path)
        program = torch.export.load(path).module()
        for rows in (features.rows(0, 1), features.rows(7, 7 + 12), features.rows(0, len(features))):
            given = rows.to_torch()
            torch.testing.assert_close(program(**given) if isinstance(given, dict) else program(given), forward(model, given))

    model = build_model("SmallCNN", {"image_size": 8}).eval()
    export_program(model, [parse_input("1,8,8")], path)
    images = torch.randn(5, 1, 8, 8)
    torch.testing.assert_close(torch.export.load(path).module()(images), model(images))

    named = TwoInputs().eval()
    export_program(named, [parse_input("tokens=6:int64"), parse_input("scale=4")], path)
    batch = {"tokens": torch.randint(10, (7, 6)), "scale": torch.randn(7, 4)}
    torch.testing.assert_close(torch.export.load(path).module()(**batch), named(**batch))
    assert list(tmp_path.iterdir()) == [path]

    with pytest.raises(InvalidArgumentError, match=r"SmallCNN\w* cannot be exported as a program with inputs 1,12,8: "):
        export_program(model, [parse_input("1,12,8")], tmp_path / "other.pt2")
