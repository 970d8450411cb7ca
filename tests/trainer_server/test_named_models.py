"""A model of each spelling is checked, trained, stored, evaluated, fine-tuned, served and exported, and needs its file only at submission."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from modyn.config.base import Severity
from modyn.config.serving import ServedRun
from modyn.errors import CancelledError
from modyn.evaluator.config import load_dataset
from modyn.evaluator.evaluate import EvaluationInput, evaluate
from modyn.evaluator.records import InIntervals
from modyn.models.calls import embedding, forward, has_embedding
from modyn.models.export import export_program, parse_input
from modyn.models.names import SOURCES
from modyn.models.weights import build_model, load_model
from modyn.records import Interval
from modyn.serving.versions.predictor import VersionName
from modyn.serving.versions.promoted import StoredVersionLoader
from modyn.testing.fake_storage import FakeStorage
from modyn.trainer_server.check import check
from tests.support.libraries import TINY_BERT, model_libraries, needs
from tests.support.training import RecordedReport, TrainingRoom, payload_of, small_pipeline

if TYPE_CHECKING:
    from modyn.model_storage.client import ModelStorageClient

torch.set_num_threads(1)

__all__ = ["model_libraries"]  # a fixture
pytestmark = pytest.mark.usefixtures("model_libraries")

NET = """
from torch import nn


class Net(nn.Module):
    '''The two layers share their weights.'''

    def __init__(self, num_classes):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.last = nn.Linear(6, num_classes)

    def forward(self, x):
        return self.last(self.second(self.first(x).relu()).relu())
"""
PARSER = """
def batch_parser_function(data, offsets):
    rows = torch.from_numpy(data.reshape(len(offsets) - 1, -1).view(np.float32).copy())
    return {}
"""
IMAGES = {"batch_parser_function": PARSER.format("rows[:, :3, None, None].expand(-1, 3, 32, 32).contiguous()")}
TOKENS = {
    "batch_parser_function": PARSER.format(
        "{'input_ids': (rows.abs() * 9).long() % 30, 'attention_mask': torch.ones_like(rows).long()}"
    )
}
ROWS = {"record_layout": {"dtype": "float32", "shape": [6]}}


@dataclass(frozen=True)
class Spelling:
    id: str
    config: Mapping[str, Any]
    data: Mapping[str, Any] = field(default_factory=lambda: ROWS)
    inputs: tuple[str, ...] = ("6",)
    definition: str = ""

    @property
    def pipeline(self) -> dict[str, Any]:
        name = self.id.rpartition(":")[2 if self.id.startswith("transformers") else 0]
        sources = {name: {"path": "/gone/config.json", "text": self.definition}} if self.definition else {}
        training = {"epochs_per_trigger": 2, "checkpointing": {"activated": True, "interval": 2}}
        return small_pipeline(
            training,
            model={"id": self.id, "config": dict(self.config)},
            data={"dataset_id": "fake", **self.data},
            **{SOURCES: sources},
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        rng = np.random.default_rng(3)
        shapes = {(given.name or "input"): (given.dtype, given.shape) for given in map(parse_input, self.inputs)}
        return {
            name: np.ones((3, *shape), np.int64) if dtype == "int64" else rng.random((3, *shape)).astype(np.float32)
            for name, (dtype, shape) in shapes.items()
        }


SPELLINGS = {
    "importable": Spelling("torch.nn:Linear", {"in_features": 6, "out_features": 10}),
    "file": Spelling("./net.py:Net", {"num_classes": 10}, definition=NET),
    "torchvision": Spelling("torchvision:shufflenet_v2_x0_5", {"num_classes": 10}, IMAGES, ("3,32,32",)),
    "timm": Spelling("timm:test_vit", {"num_classes": 10, "img_size": 32}, IMAGES, ("3,32,32",)),
    "transformers": Spelling(
        "transformers:./tiny",
        {"num_labels": 10, "pretrained": False},
        TOKENS,
        ("input_ids=6:int64", "attention_mask=6:int64"),
        json.dumps(TINY_BERT),
    ),
}
EACH = [
    pytest.param(spelling, id=name, marks=[needs(name)] if name in ("torchvision", "timm", "transformers") else [])
    for name, spelling in SPELLINGS.items()
]


@pytest.mark.parametrize("spelling", EACH)
def test_a_model_by_name_lives_like_a_registered_one(spelling: Spelling, tmp_path: Path) -> None:
    pipeline = spelling.pipeline
    assert [problem for problem in check(pipeline, RecordedReport()) if problem.severity is Severity.ERROR] == []
    room = TrainingRoom(tmp_path)
    undisturbed = room.train(pipeline)

    other = TrainingRoom(tmp_path / "resumed")
    other.folder.mkdir()
    with pytest.raises(CancelledError):
        other.train(pipeline, report=RecordedReport(stop_after=5))
    resumed = other.train(pipeline)
    assert resumed.trained.weights_sha256 == undisturbed.trained.weights_sha256

    stored = room.models.get(undisturbed.trained.model_id, tmp_path / "stored.safetensors")
    assert stored.model_definition == spelling.definition
    network = load_model(stored.model_class, stored.model_config, stored.path, stored.model_definition)
    room.train(pipeline, trigger_id=1, parent_model_id=undisturbed.trained.model_id)
    if spelling.id.startswith("./net.py"):
        assert network.get_parameter("second.weight") is network.get_parameter("first.weight")

    fake = FakeStorage()
    fake.add_dataset("fake")
    fake.add_samples("fake", range(40), [key % 10 for key in range(40)], [payload_of(key) for key in range(40)])
    dataset = load_dataset({"dataset_id": "fake", **spelling.data, "batch_size": 16, "metrics": [{"name": "Accuracy"}]})
    inputs = EvaluationInput(dataset, InIntervals([Interval()]), fake.client(), fake.payload_client())
    (score,) = evaluate(network, inputs)
    assert score.value is not None
    assert 0 <= score.value <= 1

    models = cast("ModelStorageClient", room.models)
    predictor = StoredVersionLoader(models, ServedRun(inputs=spelling.inputs), "cpu")(
        VersionName("m", str(stored.version.model_id))
    )
    arrays = spelling.arrays()
    tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
    given: Any = tensors if spelling.inputs[0].startswith("input_ids") else tensors["input"]
    with torch.no_grad():
        expected = forward(network, given)
        assert has_embedding(network)
        assert embedding(network, given).shape[0] == 3
    np.testing.assert_allclose(predictor.predict(arrays)["output"], expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow  # torch's compiler takes seconds to import
@pytest.mark.parametrize("spelling", EACH)
def test_a_model_by_name_is_exported(spelling: Spelling, tmp_path: Path) -> None:
    stored = TrainingRoom(tmp_path).train(spelling.pipeline).stored
    network = build_model(stored.model_class, stored.model_config, stored.model_definition).eval()
    export_program(network, [parse_input(text) for text in spelling.inputs], tmp_path / "model.pt2")
    tensors = {name: torch.from_numpy(values) for name, values in spelling.arrays().items()}
    given: Any = tensors if spelling.inputs[0].startswith("input_ids") else tensors["input"]
    program = torch.export.load(tmp_path / "model.pt2").module()
    found = program(**given) if isinstance(given, dict) else program(given)
    torch.testing.assert_close(found, forward(network, given))


def test_frozen_parameters_keep_their_weights(tmp_path: Path) -> None:
    pipeline = SPELLINGS["file"].pipeline
    room = TrainingRoom(tmp_path)
    parent = room.train(pipeline)
    pipeline["model"]["freeze"] = ["first", "*.bias"]
    child = room.train(pipeline, trigger_id=1, parent_model_id=parent.trained.model_id)
    kept = {name for name, value in parent.weights.items() if torch.equal(value, child.weights[name])}
    assert kept == {"first.weight", "second.weight", "first.bias", "second.bias", "last.bias"}  # the two weights are one


@pytest.mark.parametrize(
    ("patterns", "told"),
    [(["frist"], "no parameter of the model matches 'frist', did you mean 'first'?"), (["*"], "no parameter is left to train")],
)
def test_a_wrong_pattern_of_frozen_parameters_is_named(patterns: list[str], told: str) -> None:
    pipeline = SPELLINGS["file"].pipeline
    pipeline["model"]["freeze"] = patterns
    found = [problem for problem in check(pipeline, RecordedReport()) if problem.path == "model.freeze"]
    assert [told in problem.message for problem in found] == [True]
