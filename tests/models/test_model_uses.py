"""Check, training, evaluation, drift, serving and exports work with each model of tables, images and texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from modyn.config.base import Severity
from modyn.errors import CancelledError
from modyn.evaluator.config import load_dataset
from modyn.evaluator.evaluate import EvaluationInput, evaluate, measure
from modyn.evaluator.records import InIntervals, OutputKind
from modyn.models.calls import embedding, forward, last_layer, score
from modyn.models.export import export_program, feature_inputs, parse_input
from modyn.models.onnx_export import export_onnx
from modyn.models.weights import build_model, load_weights, save_weights
from modyn.records import Interval
from modyn.serving.versions.column_predictor import ColumnPredictor
from modyn.serving.versions.predictor import warm_up
from modyn.serving.versions.torch_predictor import TorchPredictor, inputs_of
from modyn.testing.fake_storage import FakeStorage
from modyn.trainer_server.check import check
from modyn.trainer_server.loop.seeding import derived_seed, seed_everything
from tests.support.column_samples import SPARSE, ColumnData, column_pipeline, columns_of, preprocessing_of_keys
from tests.support.column_samples import row_of as columns_of_row
from tests.support.model_uses import EACH, USES, Use
from tests.support.training import NUM_CLASSES, MemoryData, Outcome, RecordedReport, TrainingRoom, payload_of, small_pipeline

FROM_SECTION = pytest.mark.parametrize(
    "model",
    [
        {"id": "TabularMLP", "config": {"num_categories": [50, 7], "num_dense": 2, "num_classes": 10, "hidden_sizes": [8]}},
        {
            "id": "DLRM",
            "config": {
                "num_categories": [50, 7],
                "num_dense": 2,
                "num_classes": 10,
                "embedding_size": 4,
                "bottom_sizes": [8],
                "top_sizes": [8],
                "sparse_gradients": True,
            },
        },
    ],
    ids=lambda model: model["id"],
)

pytestmark = pytest.mark.usefixtures("preloaded_fakes", "torch_as_it_was")


@pytest.fixture
def torch_as_it_was() -> Iterator[None]:
    """Trainings switch deterministic algorithms on, which later tests do not expect."""
    torch.set_num_threads(1)
    yield
    torch.use_deterministic_algorithms(False)


def errors(pipeline: dict[str, Any]) -> list[tuple[str, str]]:
    found = check(pipeline, RecordedReport())
    return [(problem.path, problem.message) for problem in found if problem.severity is not Severity.WARNING]


def trained_model(model: dict[str, Any], outcome: Outcome) -> nn.Module:
    network = build_model(model["id"], model["config"])
    network.load_state_dict(outcome.weights)
    return network.eval()


@contextmanager
def room_at(folder: Path) -> Iterator[TrainingRoom]:
    folder.mkdir()
    yield TrainingRoom(folder)


@EACH
def test_a_model_is_checked_trained_on_chosen_samples_resumed_and_stored(use: Use, tmp_path: Path) -> None:
    chosen = {"strategy": "GradNorm", "ratio": 50, "sample_then_batch": False}
    selection = {"name": "CoresetStrategy", "maximum_keys_in_memory": 16, "downsampling_config": chosen}
    options = {"epochs_per_trigger": 2, "shuffle": True, "checkpointing": {"activated": True, "interval": 1}}
    pipeline = small_pipeline(options, model=use.model, data=use.data, selection_strategy=selection)
    assert errors(pipeline) == []
    with room_at(tmp_path / "alone") as room:
        alone = room.train(pipeline, MemoryData(64))
    with room_at(tmp_path / "stopped") as room:
        with pytest.raises(CancelledError):
            room.train(pipeline, MemoryData(64), RecordedReport(stop_after=5))
        resumed = room.train(pipeline, MemoryData(64))
    assert alone.trained.weights_sha256 == resumed.trained.weights_sha256
    assert alone.result["downsampling"]["num_chosen"] > 0

    network, other, path = trained_model(use.model, alone), use.build(), tmp_path / "model.safetensors"
    save_weights(network, path)
    load_weights(other, path)
    assert all(torch.equal(a, b) for a, b in zip(network.state_dict().values(), other.state_dict().values(), strict=True))


@EACH
def test_a_model_is_scored_evaluated_and_compared_by_its_embeddings(use: Use) -> None:
    torch.manual_seed(1)
    network, data = use.build().eval(), use.batch(range(20))
    with torch.no_grad():
        output, embedded = forward(network, data), embedding(network, data)
    assert (output.shape, embedded.shape) == ((20, NUM_CLASSES), (20, last_layer(network).in_features))
    torch.testing.assert_close(last_layer(network)(embedded), output)

    labels = torch.arange(20) % NUM_CLASSES
    found = score(network, data, labels, lambda logits, classes: functional.cross_entropy(logits, classes, reduction="none"))
    loss = functional.cross_entropy(forward(network, data), labels, reduction="sum")
    (by_weight,) = torch.autograd.grad(loss, [last_layer(network).weight])
    torch.testing.assert_close(found.last_layer_gradients()[0].sum(0), by_weight, rtol=1e-4, atol=1e-5)

    fake = FakeStorage()
    fake.add_dataset("fake")
    fake.add_samples("fake", range(20), labels.tolist(), [payload_of(key) for key in range(20)])
    dataset = load_dataset({**use.data, "batch_size": 8, "metrics": [{"name": "Accuracy"}]})
    inputs = EvaluationInput(dataset, InIntervals([Interval()]), fake.client(), fake.payload_client())
    (accuracy,) = evaluate(network, inputs)
    assert accuracy.value == pytest.approx((output.argmax(1) == labels).float().mean().item())
    rows = list(measure(network, inputs, OutputKind.EMBEDDINGS))
    outputs = np.concatenate([part.outputs for part in rows])[np.argsort(np.concatenate([part.keys for part in rows]))]
    np.testing.assert_allclose(outputs, embedded.numpy(), rtol=1e-4, atol=1e-5)


@EACH
def test_a_model_says_what_it_takes_and_is_served(use: Use) -> None:
    network, data = use.build(), use.batch(range(20))
    predictor = TorchPredictor(network, inputs_of(use.id, use.config))
    warm_up(predictor, 2)
    given = data if isinstance(data, dict) else {"input": data}
    assert {tensor.name for tensor in predictor.signature.inputs} == set(given)
    found = predictor.predict({name: tensor.numpy() for name, tensor in given.items()})["output"]
    with torch.no_grad():
        np.testing.assert_allclose(found, forward(network, data).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow  # It imports torch's compiler.
@EACH
def test_a_model_is_exported(use: Use, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    network, data = use.build().eval(), use.batch(range(5))
    with torch.no_grad():
        expected = forward(network, data)
    inputs = [parse_input(text) for text in use.exported]
    export_program(network, inputs, tmp_path / "model.pt2")
    torch.testing.assert_close(forward(torch.export.load(tmp_path / "model.pt2").module(), data), expected)
    export_onnx(network, inputs, tmp_path / "model.onnx")
    given = data if isinstance(data, dict) else {"input": data}
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (found,) = session.run(None, {name: tensor.numpy() for name, tensor in given.items()})
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-3, atol=1e-4)


@FROM_SECTION
def test_a_model_of_columns_is_trained_and_served_by_the_section_preprocessing(model: dict[str, Any], tmp_path: Path) -> None:
    pipeline = column_pipeline(SPARSE, {"epochs_per_trigger": 2, "drop_last_batch": False}, model=model)
    assert errors(pipeline) == []
    outcome = TrainingRoom(tmp_path).train(pipeline, ColumnData(20))
    statistics = preprocessing_of_keys(SPARSE, *(list(range(first, min(first + 8, 20))) for first in range(0, 20, 8)))
    network, keys = trained_model(model, outcome), list(range(30))
    features = statistics.transform(columns_of(keys)).to_torch()
    with torch.no_grad():
        expected = forward(network, features)
        torch.testing.assert_close(last_layer(network)(embedding(network, features)), expected)
    predictor = ColumnPredictor(network, statistics)
    rows = [columns_of_row(key) for key in keys]
    request = {name: np.array([row[name] for row in rows], np.float64) for name in ("age", "income")}
    texts = {name: np.array([(row[name] or "").encode() or None for row in rows], object) for name in ("site", "query")}
    np.testing.assert_array_equal(predictor.predict({**request, **texts})["output"], expected.numpy())


@pytest.mark.slow  # It imports torch's compiler.
@FROM_SECTION
def test_a_model_of_columns_is_exported_with_features_as_inputs(model: dict[str, Any], tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    network = build_model(model["id"], model["config"]).eval()
    statistics = preprocessing_of_keys(SPARSE, list(range(20)))
    export_program(network, feature_inputs(2, 57), tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    export_onnx(network, feature_inputs(2, 57), tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for keys in ([3], list(range(25))):
        features: Any = statistics.transform(columns_of(keys)).to_torch()
        with torch.no_grad():
            expected = forward(network, features)
        torch.testing.assert_close(program(**features), expected)
        (found,) = session.run(None, {name: tensor.numpy() for name, tensor in features.items()})
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-3, atol=1e-4)


def test_several_optimizers_train_tables_and_perceptrons_of_a_recommendation_model(tmp_path: Path) -> None:
    """Do the same by hand, with PyTorch alone."""
    use = next(use for use in USES if use.id == "DLRM")
    options = {**use.config, "sparse_gradients": True}
    tables = {
        "name": "tables",
        "algorithm": "SparseAdam",
        "param_groups": [{"module": "model.embeddings", "config": {"lr": 0.1}}],
    }
    groups = [{"module": f"model.{name}_model", "config": {"lr": 0.01}} for name in ("bottom", "top")]
    optimizers = [tables, {"name": "dense", "algorithm": "Adam", "param_groups": groups}]
    outcome = TrainingRoom(tmp_path).train(
        small_pipeline({"optimizers": optimizers}, model={"id": "DLRM", "config": options}, data=use.data), MemoryData(40)
    )

    seed_everything(derived_seed(7, 0, 1))
    network: Any = build_model("DLRM", options)
    by_hand = [
        torch.optim.SparseAdam(network.embeddings.parameters(), lr=0.1),
        torch.optim.Adam([*network.bottom_model.parameters(), *network.top_model.parameters()], lr=0.01),
    ]
    for first in range(0, 40, 8):
        labels = torch.arange(first, first + 8) % NUM_CLASSES
        torch.autograd.backward(functional.cross_entropy(network(**use.batch(range(first, first + 8))), labels))
        for optimizer in by_hand:
            optimizer.step()
            optimizer.zero_grad()
    for name, weights in network.state_dict().items():
        torch.testing.assert_close(outcome.weights[name], weights)
