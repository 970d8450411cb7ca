"""A model as an ONNX file, run by ONNX Runtime where it is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from modyn.errors import InvalidArgumentError
from modyn.models.calls import forward
from modyn.models.export import ModelInput, feature_inputs, parse_input
from modyn.models.onnx_bags import SummedBags, replace_bags
from modyn.models.onnx_export import export_onnx, exporter
from modyn.models.weights import build_model
from tests.models.test_export import TwoInputs, behind_preprocessing
from tests.support.column_samples import DENSE, SPARSE


class TwoOutputs(nn.Module):
    """Returns a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, data: Tensor) -> dict[str, Tensor]:
        return {"scores": self.layer(data), "total": data.sum(dim=1)}


@pytest.mark.slow  # Nothing else in the gate imports torch's compiler, which takes seconds.
def test_a_file_returns_what_the_model_returns_for_batches_of_any_size(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="`pip install modyn[onnx]` installs it")
    onnxruntime = pytest.importorskip("onnxruntime", reason="it runs ONNX files: `pip install onnxruntime`")
    path = tmp_path / "model.onnx"

    def run(**inputs: Tensor) -> dict[str, np.ndarray]:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, {name: values.numpy() for name, values in inputs.items()}), strict=True))

    for section in (SPARSE, DENSE):
        model, features = behind_preprocessing(section)
        export_onnx(model, feature_inputs(features.dense.shape[1], features.num_sparse), path)
        for rows in (features.rows(0, 1), features.rows(7, 7 + 12), features.rows(0, len(features))):
            given = rows.to_torch()
            outputs = run(**given if isinstance(given, dict) else {"input": given})["output"]
            np.testing.assert_allclose(outputs, forward(model, given).detach().numpy(), rtol=1e-4, atol=1e-5)

    # A parameter of the model has the name of an input, and as many samples as classes are followed.
    model = build_model("SparseLogisticRegression", {"num_features": 57, "num_dense": 2, "num_classes": 2}).eval()
    export_onnx(model, feature_inputs(2, 57), path)
    (output,) = onnxruntime.InferenceSession(path).get_outputs()
    assert output.shape == ["batch", 2]

    model = build_model("SmallCNN", {"image_size": 8}).eval()
    export_onnx(model, [parse_input("1,8,8")], path)
    for num_rows in (1, 5):
        images = torch.randn(num_rows, 1, 8, 8)
        np.testing.assert_allclose(run(input=images)["output"], model(images).detach().numpy(), rtol=1e-3, atol=1e-5)

    named = TwoInputs().eval()
    export_onnx(named, [parse_input("tokens=6:int64"), parse_input("scale=4")], path)
    batch = {"tokens": torch.randint(10, (7, 6)), "scale": torch.randn(7, 4)}
    np.testing.assert_allclose(run(**batch)["output"], named(**batch).detach().numpy(), rtol=1e-3, atol=1e-5)

    export_onnx(TwoOutputs().eval(), [ModelInput((3,))], path)
    assert run(input=torch.ones(4, 3))["total"].tolist() == [3.0] * 4
    assert list(tmp_path.iterdir()) == [path]

    with pytest.raises(InvalidArgumentError, match=r"SmallCNN\w* cannot be exported as ONNX with inputs 1,12,8: "):
        export_onnx(model, [parse_input("1,12,8")], tmp_path / "other.onnx")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("padding", [None, 4])
@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=7), weighted=st.booleans(), seed=st.integers(0, 99))
def test_sums_are_those_of_embedding_bags(padding: int | None, lengths: list[int], weighted: bool, seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.EmbeddingBag(5, 3, mode="sum", padding_idx=padding))
    bags, indices, size = model[0], torch.randint(5, (sum(lengths),)), max(1, *lengths)
    offsets = torch.tensor(lengths).cumsum(0) - torch.tensor(lengths)
    weights = torch.randn(len(indices)) if weighted else None
    rows = torch.randint(5, (len(lengths), size))
    with replace_bags(model):
        assert isinstance(model[0], SummedBags)
        torch.testing.assert_close(model[0](indices, offsets, weights), bags(indices, offsets, weights))
        torch.testing.assert_close(model[0](rows), bags(rows))
    assert model[0] is bags


def test_inputs_and_formats_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="there is no format 'onx' of programs, did you mean 'onnx'"):
        exporter("onx")
    if importlib.util.find_spec("onnxscript") is not None:
        with pytest.raises(InvalidArgumentError, match="by position, or give each a name"):
            export_onnx(nn.Linear(2, 2), [], tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    """The test runs in a process that cannot import ONNX."""
    program = (
        "import importlib.util, pathlib, torch\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *given: None if name.startswith('onnx') else find(name, *given)\n"
        "from modyn.models.export import ModelInput\n"
        "from modyn.models.onnx_export import export_onnx\n"
        "export_onnx(torch.nn.Linear(2, 2), [ModelInput((2,))], pathlib.Path('model.onnx'))\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        "ConfigError: exporting to ONNX needs onnx, which is not installed; `pip install modyn[onnx]` installs it" in done.stderr
    )
