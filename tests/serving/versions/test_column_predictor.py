"""Predictions of columns: server, training and evaluator give a model the same bits."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from modyn.config.preprocessing import with_columns
from modyn.config.serving import ServedRun
from modyn.dataset.batch import Batch
from modyn.dataset.config import DataConfig
from modyn.dataset.decode import BatchPipeline
from modyn.dataset.preparation_clock import PreparationClock
from modyn.errors import ConfigError, InvalidArgumentError
from modyn.evaluator.config import load_dataset
from modyn.evaluator.evaluate import EvaluationInput, measure
from modyn.evaluator.records import InIntervals, OutputKind
from modyn.model_storage.client import ModelHeader, ModelStorageClient
from modyn.models.weights import build_model, save_weights
from modyn.preprocessing import Preprocessing
from modyn.proto import inference_pb2
from modyn.records import Interval, RunId
from modyn.serving.messages.infer import InferRequest
from modyn.serving.messages.json_tensors import metadata, parse_request
from modyn.serving.messages.signature import Tensor, Tensors
from modyn.serving.model_server import ModelServer
from modyn.serving.observations.intake import ObservationIntake
from modyn.serving.observations.router import ObservationRouter
from modyn.serving.observations.storage_log import row_of
from modyn.serving.prometheus import UNLIKE_INPUTS, count_inputs, forget_inputs
from modyn.serving.protocol.grpc_service import from_proto
from modyn.serving.versions.column_predictor import ColumnPredictor
from modyn.serving.versions.predictor import VersionName, warm_up
from modyn.serving.versions.promoted import StoredVersionLoader
from modyn.storage.model.samples import Payloads, common_size
from modyn.testing.fake_observation_log import FakeObservationLog
from modyn.testing.fake_storage import FakeStorage
from modyn.testing.fakes import FakeModelStorage
from modyn.testing.waiting import PATIENCE_S
from modyn.trainer_server.online.stream_preprocessing import StreamPreprocessing
from tests.support.column_samples import (
    CSV,
    DENSE,
    SPARSE,
    SPARSE_MODEL,
    csv_row,
    json_row,
    preprocessing_of_keys,
)
from tests.support.column_samples import (
    row_of as columns_of_row,
)

KEYS = list(range(40, 71))
"""Later ones than those that the statistics are of: with categories that these do not know."""
SECTIONS = pytest.mark.parametrize(("section", "payload"), [(DENSE, json_row), (SPARSE, json_row), (CSV, csv_row)])


class Given(nn.Module):
    """Records its inputs, and returns the numbers of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[dict[str, torch.Tensor]] = []

    def forward(self, data: torch.Tensor | None = None, **named: torch.Tensor) -> torch.Tensor:
        self.given.append({"data": data} if data is not None else named)
        rows = len(data) if data is not None else len(named["offsets"])
        return torch.arange(2.0 * rows).reshape(rows, 2)


def as_bytes(data: Any) -> dict[str, tuple[torch.dtype, bytes]]:
    named = {"data": data} if isinstance(data, torch.Tensor) else data
    return {name: (tensor.dtype, tensor.numpy().tobytes()) for name, tensor in named.items()}


def payloads_of(payloads: list[bytes]) -> Payloads:
    offsets = np.cumsum([0, *map(len, payloads)])
    data = np.frombuffer(b"".join(payloads), np.uint8)
    return Payloads(np.arange(len(payloads)), np.zeros(len(payloads), np.int64), data, offsets, common_size(offsets))


def fed_by_training(section: dict[str, Any], statistics: Preprocessing, payloads: list[bytes]) -> Any:
    data = with_columns({"preprocessing": section, "data": {"dataset_id": "d"}})["data"]
    decoding, rows = BatchPipeline(DataConfig(**data), training=True), payloads_of(payloads)
    inputs, labels = decoding.run(rows)
    read = decoding.columns(rows, PreparationClock())
    assert read is not None
    batch = Batch(torch.from_numpy(rows.keys), inputs, labels, torch.ones(len(payloads)), columns=read.source, read=read)
    return StreamPreprocessing(statistics, learns=False).prepared(batch).data


def fed_by_evaluator(section: dict[str, Any], statistics: Preprocessing, payloads: list[bytes]) -> list[dict[str, torch.Tensor]]:
    fake, model = FakeStorage(), Given()
    fake.add_dataset("test")
    fake.add_samples("test", range(len(payloads)), [0] * len(payloads), payloads)
    entry = {"dataset_id": "test", "batch_size": len(payloads), "metrics": [{"name": "Accuracy"}]}
    (dataset,) = with_columns({"preprocessing": section, "evaluation": {"datasets": [entry]}})["evaluation"]["datasets"]
    source = InIntervals([Interval()])
    inputs = EvaluationInput(load_dataset(dataset), source, fake.client(), fake.payload_client(), preprocessing=statistics)
    assert sum(len(rows.keys) for rows in measure(model, inputs, OutputKind.LOGITS)) == len(payloads)
    return model.given


def json_body(section: dict[str, Any], keys: list[int]) -> bytes:
    """A request in JSON: null where a value is missing; an empty text too where payloads are CSV."""
    rows, empty = [columns_of_row(key) for key in keys], "" if section["format"] == "csv" else None
    inputs = []
    for name, kind in section["columns"].items():
        values = [row[name] for row in rows]
        if kind != "number":
            values = [empty if value is None else value for value in values]
        datatype = "FP64" if kind == "number" else "BYTES"
        inputs.append({"name": name, "datatype": datatype, "shape": [len(keys)], "data": values})
    return json.dumps({"inputs": inputs}).encode()


def raw(values: list[Any], kind: str) -> bytes:
    if kind == "number":
        return np.array([np.nan if value is None else value for value in values], "<f8").tobytes()
    texts = [(value or "").encode() for value in values]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def tensors_of(section: dict[str, Any], keys: list[int]) -> Iterator[tuple[str, str, bytes]]:
    """Name, datatype and bytes of the columns of a request."""
    for name, kind in section["columns"].items():
        yield name, "FP64" if kind == "number" else "BYTES", raw([columns_of_row(key)[name] for key in keys], kind)


def missing_texts(section: dict[str, Any], keys: list[int]) -> dict[str, list[int]]:
    """The parameter `missing` of a request."""
    names = [name for name, kind in section["columns"].items() if kind != "number"]
    return {name: [at for at, key in enumerate(keys) if columns_of_row(key)[name] is None] for name in names}


def grpc_inputs(section: dict[str, Any], keys: list[int]) -> Tensors:
    request = inference_pb2.ModelInferRequest(model_name="m")
    request.parameters["missing"].string_param = json.dumps(missing_texts(section, keys))
    for name, datatype, content in tensors_of(section, keys):
        request.inputs.add(name=name, datatype=datatype, shape=[len(keys)])
        request.raw_input_contents.append(content)
    return from_proto(request).inputs


def binary_inputs(section: dict[str, Any], keys: list[int]) -> Tensors:
    """Return the inputs of an HTTP request whose tensors are bytes after the JSON."""
    sent = list(tensors_of(section, keys))
    inputs = [
        {"name": name, "datatype": datatype, "shape": [len(keys)], "parameters": {"binary_data_size": len(content)}}
        for name, datatype, content in sent
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"missing": missing_texts(section, keys)}}).encode()
    return parse_request("m", None, head + b"".join(content for _, _, content in sent), len(head)).request.inputs


def statistics_of(section: dict[str, Any]) -> Preprocessing:
    return preprocessing_of_keys(section, list(range(20)), list(range(20, 40)))


@SECTIONS
def test_training_evaluator_and_server_feed_a_model_the_same_bits(section: dict[str, Any], payload: Any) -> None:
    statistics = statistics_of(section)
    before, payloads = statistics.to_bytes(), [payload(key) for key in KEYS]
    trained = as_bytes(fed_by_training(section, statistics, payloads))
    (evaluated,) = fed_by_evaluator(section, statistics, payloads)
    served = Given()
    predictor = ColumnPredictor(served, statistics)
    inputs = parse_request("m", None, json_body(section, KEYS)).request.inputs
    assert predictor.signature.check_inputs(inputs) == len(KEYS)
    predictor.predict(inputs)
    assert as_bytes(evaluated) == trained
    assert as_bytes(served.given[-1]) == trained
    assert statistics.to_bytes() == before


@SECTIONS
def test_both_protocols_and_stored_observations_give_the_same_bits(section: dict[str, Any], payload: Any) -> None:
    """A text that is missing is told from an empty one."""
    statistics = statistics_of(section)
    assert {columns_of_row(key)["query"] for key in KEYS} >= {""}
    assert missing_texts(section, KEYS)["site"]
    predictor = ColumnPredictor(Given(), statistics)
    expected = as_bytes(predictor.features(parse_request("m", None, json_body(section, KEYS)).request.inputs))
    for inputs in (grpc_inputs(section, KEYS), binary_inputs(section, KEYS)):
        predictor.signature.check_inputs(inputs)
        assert as_bytes(predictor.features(inputs)) == expected
    rows = [row_of({name: values[at : at + 1] for name, values in inputs.items()}) for at in range(len(KEYS))]
    assert as_bytes(fed_by_training({**section, "format": "json", "names": None}, statistics, rows)) == expected


def test_a_row_has_the_same_bits_alone_and_in_a_batch() -> None:
    predictor = ColumnPredictor(Given(), statistics_of(DENSE))
    inputs = parse_request("m", None, json_body(DENSE, KEYS)).request.inputs
    together = predictor.features(inputs)
    for at in range(len(KEYS)):
        alone = predictor.features({name: values[at : at + 1] for name, values in inputs.items()})
        assert alone.numpy().tobytes() == together[at : at + 1].numpy().tobytes()


def test_the_signature_has_an_input_for_each_column() -> None:
    network = build_model(SPARSE_MODEL["id"], SPARSE_MODEL["config"])
    predictor = ColumnPredictor(network, statistics_of(SPARSE))
    warm_up(predictor, 2)
    found = metadata("m", ["1"], predictor.signature)
    assert found["inputs"] == [
        {"name": "age", "datatype": "FP64", "shape": [-1]},
        {"name": "income", "datatype": "FP64", "shape": [-1]},
        {"name": "query", "datatype": "BYTES", "shape": [-1]},
        {"name": "site", "datatype": "BYTES", "shape": [-1]},
    ]
    assert found["outputs"] == [{"name": "output", "datatype": "FP32", "shape": [-1, 10]}]
    predictor.close()


def texts(*values: bytes) -> Tensor:
    return np.array(values, object)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"age": np.array([np.nan]), "site": texts(b"a")}, "row 0 has no value in column 'age'; add an Imputer"),
        ({"age": np.array([1e200]), "site": texts(b"a")}, r"row 0 has 1e\+200 in column 'age', which is too large"),
        ({"age": np.array([1.0]), "site": texts(b"\xff")}, "column 'site' cannot be read as category"),
    ],
)
def test_a_value_that_is_not_a_feature_is_the_fault_of_the_request(inputs: Tensors, said: str) -> None:
    section = {"format": "json", "columns": {"age": "number", "site": "category"}, "components": [{"id": "LabelIndexer"}]}
    predictor = ColumnPredictor(Given(), Preprocessing(section))
    with pytest.raises(InvalidArgumentError, match=said):
        predictor.predict(inputs)


def test_inputs_unlike_those_of_the_training_are_counted_by_column() -> None:
    fill = {"id": "Imputer", "strategy": "constant", "fill_value": 0}
    components = [{"id": "InputGuard", "warm_up_rows": 0}, fill, {"id": "LabelIndexer"}]
    section = {"format": "json", "columns": {"age": "number", "site": "category"}, "components": components}
    statistics = Preprocessing(section)
    statistics.update({"age": np.array([20.0, 40.0]), "site": texts(b"a", b"b")})
    name = VersionName("guarded", "1")
    server = ModelServer(lambda name: ColumnPredictor(Given(), statistics, found=partial(count_inputs, name)))

    def counted() -> dict[tuple[str, str], float]:
        samples = [sample for metric in UNLIKE_INPUTS.collect() for sample in metric.samples]
        mine = [sample for sample in samples if sample.labels["model"] == "guarded" and sample.name.endswith("_total")]
        return {(sample.labels["column"], sample.labels["what"]): sample.value for sample in mine}

    server.swap(name)
    assert counted() == {}, "those that warm a version up are not of clients"
    for ages, sites in (((30.0, np.nan, 41.0), (b"c", b"a", b"c")), ((20.0, 1.0, 40.0), (b"a", b"b", b"b"))):
        answered = threading.Event()
        inputs = {"age": np.array(ages), "site": texts(*sites)}
        server.infer(InferRequest("guarded", inputs), lambda _, answered=answered: answered.set())  # type: ignore[misc]
        assert answered.wait(PATIENCE_S)
    assert counted() == {("age", "missing"): 1, ("age", "out_of_range"): 2, ("site", "unseen"): 2}
    assert server.close()
    forget_inputs(name, ColumnPredictor(Given(), statistics).signature)
    assert counted() == {}


def test_a_row_that_is_not_a_feature_is_not_an_observation() -> None:
    """Stored, it would end the training that reads it."""
    section = {"format": "json", "columns": {"age": "number"}, "components": []}
    server, log = ModelServer(lambda _: ColumnPredictor(Given(), Preprocessing(section))), FakeObservationLog()
    server.swap(VersionName("m", "1"))
    intake = ObservationIntake("m", log)

    def posted(*ages: float | None) -> dict[str, int]:
        tensors = [[{"name": "age", "datatype": "FP64", "shape": [1], "data": [age]}] for age in ages]
        each = [{"key": f"{number} {ages}", "inputs": inputs, "label": 1} for number, inputs in enumerate(tensors)]
        return ObservationRouter({"m": intake}).post(json.dumps({"observations": each}).encode(), server.check_inputs)

    said = r"observations\[1\]: row 0 has no value in column 'age'; add an Imputer"
    with pytest.raises(InvalidArgumentError, match=said):
        posted(3.0, None)
    assert log.records == {}
    assert posted(3.0, 4.0) == {"stored": 2, "waiting": 0, "repeated": 0}
    assert len(log.records) == 2
    intake.close()
    assert server.close()


def test_a_model_that_does_not_take_the_features_is_refused() -> None:
    network = build_model("MLP", {"input_size": 5, "hidden_sizes": [], "num_classes": 2})
    with pytest.raises(ConfigError, match=r"MLPNetwork does not take the inputs age FP64 \[-1\]"):
        ColumnPredictor(network, statistics_of(DENSE))


@pytest.fixture
def stored(tmp_path: Path) -> FakeModelStorage:
    models = FakeModelStorage()
    network = build_model(SPARSE_MODEL["id"], SPARSE_MODEL["config"])
    for trigger, keys in enumerate(([*range(20)], [*range(40)])):
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.fill_(trigger + 0.5)
        save_weights(network, tmp_path / "put.safetensors", preprocessing_of_keys(SPARSE, keys).to_bytes())
        models.put(ModelHeader(RunId("run-1"), trigger, SPARSE_MODEL["id"], SPARSE_MODEL["config"]), tmp_path / "put.safetensors")
    return models


def test_a_version_comes_with_its_own_statistics(stored: FakeModelStorage) -> None:
    load = StoredVersionLoader(cast("ModelStorageClient", stored), ServedRun(), "cpu")
    inputs = parse_request("m", None, json_body(SPARSE, KEYS)).request.inputs
    for trigger, keys in enumerate(([*range(20)], [*range(40)])):
        info = stored.find(RunId("run-1"), trigger)
        assert info is not None
        predictor = load(VersionName("m", str(info.version.model_id)))
        assert isinstance(predictor, ColumnPredictor)
        statistics = preprocessing_of_keys(SPARSE, keys)
        features = fed_by_training(SPARSE, statistics, [json_row(key) for key in KEYS])
        assert as_bytes(predictor.features(inputs)) == as_bytes(features)
        network = build_model(SPARSE_MODEL["id"], SPARSE_MODEL["config"])
        for parameter in network.parameters():
            parameter.data.fill_(trigger + 0.5)
        np.testing.assert_array_equal(predictor.predict(inputs)["output"], network(**features).detach().numpy())


def test_inputs_in_the_settings_are_not_for_columns(stored: FakeModelStorage) -> None:
    info = stored.find(RunId("run-1"), 0)
    assert info is not None
    with pytest.raises(ConfigError, match="version 1 of model 'm': it was trained with the section `preprocessing`"):
        StoredVersionLoader(cast("ModelStorageClient", stored), ServedRun(inputs=("4",)), "cpu")(
            VersionName("m", str(info.version.model_id))
        )


def test_null_is_for_models_that_fill_it_in(stored: FakeModelStorage) -> None:
    from modyn.serving.messages.signature import TensorSignature

    inputs = parse_request("m", None, json_body(SPARSE, [3, 5])).request.inputs
    assert np.isnan(inputs["age"]).tolist() == [True, False]
    assert inputs["site"].tolist()[1] is None
    with pytest.raises(InvalidArgumentError, match="input 'site' holds null"):
        TensorSignature("site", "BYTES", (-1,)).check(inputs["site"])
    with pytest.raises(InvalidArgumentError, match="input 'age' holds NaN"):
        TensorSignature("age", "FP64", (-1,)).check(inputs["age"])
    assert json.loads(row_of({name: values[:1] for name, values in inputs.items()}))["age"] is None
