"""Pipelines over rows of columns on real services: trained, stepped online, evaluated and served, compared with PyTorch and Preprocessing alone."""

from __future__ import annotations

import copy
import http.client
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from modyn.client import Client
from modyn.config.dataset import DatasetConfig
from modyn.config.preprocessing import with_columns
from modyn.config.system_sections.buckets import RECORDS
from modyn.model_storage.client import ModelHeader
from modyn.models.weights import build_model, save_weights
from modyn.preprocessing import Preprocessing
from modyn.records import RunId
from modyn.storage.client import NewRecord
from modyn.supervisor.client import Run, RunState, TriggerRecord
from modyn.testing.stack import RunningStack, tiny_pipeline, tiny_training
from modyn.testing.waiting import eventually
from modyn.trainer_server.result import PreprocessingResult
from tests.support.column_samples import DENSE, SPARSE, SPARSE_MODEL, columns_of, json_row, label_of, tensors
from tests.support.comparison import differences, outcome
from tests.support.killed_stack import WORKERS, KilledStack, trigger_set_keys
from tests.support.serving_process import Serving, call, connect
from tests.support.trigger_sections import SECTIONS as TRIGGER_SECTIONS

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("preloaded_fakes")]

NUM_SAMPLES, INITIAL, STEP, DRAWN, BATCH = 165, 60, 10, 6, 10
LEARNING_RATE = 0.3
DAY = 86_400
ONLINE: dict[str, Any] = {
    "trigger": {"id": "DataAmountTrigger", "num_samples": 40},
    "step_samples": STEP,
    "history_samples": DRAWN,
}
DENSE_MODEL = {"id": "MLP", "config": {"input_size": 3, "hidden_sizes": [8], "num_classes": 10}}


def labels_of(keys: list[int]) -> torch.Tensor:
    return torch.tensor([label_of(key) for key in keys])


def pipeline(dataset: str, section: dict[str, Any], **sections: Any) -> str:
    optimizer = {"name": "default", "algorithm": "SGD", "param_groups": [{"module": "model", "config": {"lr": LEARNING_RATE}}]}
    evaluated = {
        "datasets": [{"dataset_id": dataset, "batch_size": 64, "metrics": [{"name": "Accuracy"}]}],
        "handlers": [
            {
                "name": "all", "execution_time": "after_training", "models": "matrix", "datasets": [dataset],
                "strategy": {"type": "SlicingEvalStrategy", "eval_every": "1d", "eval_start_from": 0, "eval_end_at": DAY},
            }
        ],
    }  # fmt: skip
    whole = {
        "model": SPARSE_MODEL if "query" in section["columns"] else DENSE_MODEL,
        "data": {"dataset_id": dataset},
        "preprocessing": section,
        "trigger": {"id": "InitialTrigger", "num_samples": INITIAL},
        "selection_strategy": {"name": "NewDataStrategy", "maximum_keys_in_memory": 25},
        "training": tiny_training(optimizers=[optimizer], use_previous_model=False, batch_size=BATCH, epochs_per_trigger=2),
        "online": ONLINE,
        "evaluation": evaluated,
    }
    return tiny_pipeline(dataset, **{**whole, **sections})


def add_records(client: Client, name: str, num_samples: int = NUM_SAMPLES) -> None:
    """A dataset of JSON objects, at a sample a second."""
    client.register_dataset(DatasetConfig.model_validate({"name": name, "base_path": RECORDS}))
    records = [NewRecord(f"key {key}", json_row(key), label_of(key), key) for key in range(num_samples)]
    client.append_records(name, records)
    eventually(lambda: client.dataset(name).num_samples == num_samples)


@pytest.fixture(scope="module")
def clicks(running_stack: RunningStack) -> RunningStack:
    """A stack with the dataset `clicks`."""
    with running_stack.client() as client:
        add_records(client, "clicks")
    return running_stack


def finished(stack: RunningStack, text: str, **options: Any) -> tuple[Run, list[TriggerRecord]]:
    run = stack.run(text, final_trigger=True, **options)
    assert run.state is RunState.FINISHED, run.error
    with stack.client() as client:
        return run, list(client.supervisor.triggers(run.run_id))


def given_to(model: nn.Module, data: Any) -> torch.Tensor:
    output: torch.Tensor = model(**data) if isinstance(data, dict) else model(data)
    return output


def features_as_outputs(statistics: Preprocessing) -> nn.Module:
    """A model whose outputs are its features, dense ones first."""
    config = {**SPARSE_MODEL["config"], "num_classes": statistics.num_features}
    model: Any = build_model(SPARSE_MODEL["id"], config)
    identity = torch.eye(statistics.num_features)
    with torch.no_grad():
        model.dense.copy_(identity[: statistics.num_dense])
        model.weight.weight[: statistics.num_sparse] = identity[statistics.num_dense :]
    return model  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "updates", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["online statistics", "statistics of the retraining"]
)
def test_versions_and_scores_are_those_of_pytorch_and_preprocessing(clicks: RunningStack, updates: bool) -> None:
    run, triggers = finished(clicks, pipeline("clicks", SPARSE, online={**ONLINE, "statistics": updates}))
    assert [trigger.online for trigger in triggers] == [False, True, True, True, True]
    with clicks.client() as client:
        sets = [trigger_set_keys(client, run.run_id, trigger.trigger_id) for trigger in triggers]
        models = [client.load_model(trigger.model_id or 0) for trigger in triggers]
        stored = [client.preprocessing(trigger.model_id or 0) for trigger in triggers]
        table = client.evaluations(run.run_id)
        scores = dict(zip(table["model_id"], table["value"], strict=True))
    by_hand = Preprocessing(SPARSE)
    for first in range(0, INITIAL, BATCH):
        by_hand.update(columns_of(sets[0][first : first + BATCH]))
    assert stored[0] is not None
    np.testing.assert_equal(stored[0].state(), by_hand.state())
    model = models[0].train()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for trigger, keys, expected, statistics in zip(triggers[1:], sets[1:], models[1:], stored[1:], strict=True):
        for first in range(0, len(keys), STEP + DRAWN):
            step = keys[first : first + STEP + DRAWN]
            if updates:
                by_hand.update(columns_of(step[:-DRAWN]))
            output = given_to(model, by_hand.transform(columns_of(step)).to_torch())
            optimizer.zero_grad()
            nn.functional.cross_entropy(output, labels_of(step)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        assert statistics is not None
        np.testing.assert_equal(statistics.state(), by_hand.state())
        for ours, theirs in zip(expected.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
        everything = list(range(NUM_SAMPLES))
        output = given_to(expected, statistics.transform(columns_of(everything)).to_torch())
        accuracy = float((output.argmax(1) == labels_of(everything)).float().mean())
        assert scores[trigger.model_id] == pytest.approx(accuracy)
    counted = NUM_SAMPLES if updates else INITIAL
    expected_result = PreprocessingResult(counted, dense_features=2, sparse_features=57, over_bound=by_hand.over_bound())
    assert triggers[-1].training_result.preprocessing == expected_result


def test_predictions_of_columns_and_what_is_learned_of_them(clicks: RunningStack, tmp_path: Path) -> None:
    run, triggers = finished(clicks, pipeline("clicks", SPARSE))
    with clicks.client() as client:
        client.register_dataset(DatasetConfig.model_validate({"name": "seen-clicks", "base_path": RECORDS}))
        newest = triggers[-1].model_id or 0
        model, statistics = client.load_model(newest), client.preprocessing(newest)
        assert statistics is not None
        save_weights(features_as_outputs(statistics), tmp_path / "model", statistics.to_bytes())
        header = ModelHeader(RunId(""), 0, SPARSE_MODEL["id"], {**SPARSE_MODEL["config"], "num_classes": statistics.num_features})
        pinned = client.model_storage.put(header, tmp_path / "model").model_id
    options = ("--name", "clicks", "--observations", "seen-clicks", "--pin", str(pinned), "--http-port", "0", "--grpc-port", "0")
    with Serving(clicks, run.run_id, *options) as served, closing(connect(served.address)) as connection:
        metadata = asked(connection, "GET", "/v2/models/clicks")
        assert [(each["name"], each["datatype"], each["shape"]) for each in metadata["inputs"]] == [
            ("age", "FP64", [-1]), ("income", "FP64", [-1]), ("query", "BYTES", [-1]), ("site", "BYTES", [-1])
        ]  # fmt: skip
        keys = list(range(200, 230))
        answer = asked(connection, "POST", "/v2/models/clicks/infer", {"inputs": tensors(keys)})
        features = statistics.transform(columns_of(keys)).to_torch()
        expected = given_to(model, features).detach().numpy().reshape(-1)
        assert answer["model_version"] == str(newest)
        np.testing.assert_allclose(answer["outputs"][0]["data"], expected, rtol=1e-5, atol=1e-6)
        made = statistics.transform(columns_of(keys)).to_dense()
        # Many rows at once, and one alone: bit by bit what training makes of them.
        for rows in (slice(0, len(keys)), slice(3, 4)):
            asked_for = {"inputs": tensors(keys[rows])}
            given = asked(connection, "POST", f"/v2/models/clicks/versions/{pinned}/infer", asked_for)["outputs"][0]["data"]
            np.testing.assert_array_equal(np.array(given, np.float32).reshape(made[rows].shape), made[rows])
        seen = list(range(300, 370))
        for key in seen[:10]:  # labels come back for predictions, and with features of their own
            asked(connection, "POST", "/v2/models/clicks/infer", {"id": f"r{key}", "inputs": tensors([key])})
        labels = [{"request_id": f"r{key}", "label": label_of(key)} for key in seen[:10]]
        whole = [{"key": f"k{key}", "inputs": tensors([key]), "label": label_of(key)} for key in seen[10:]]
        asked(connection, "POST", "/observations", {"observations": labels + whole})
        refused = tensors([200])
        refused[0] = {**refused[0], "datatype": "FP32"}
        status, reply = call(connection, "POST", "/v2/models/clicks/infer", {"inputs": refused})
        assert (status, "the model takes FP64" in reply["error"]) == (400, True)
        with clicks.client() as client:
            eventually(lambda: client.dataset("seen-clicks").num_samples == len(seen))
    learned = finished(clicks, pipeline("seen-clicks", SPARSE, evaluation=None, online=None))[1]
    by_hand = Preprocessing(SPARSE)
    with clicks.client() as client:
        first = client.preprocessing(learned[0].model_id or 0)
        assert first is not None
        for at in range(0, INITIAL, BATCH):
            by_hand.update(columns_of(seen[at : at + BATCH]))
    np.testing.assert_equal(first.state(), by_hand.state())


def asked(connection: http.client.HTTPConnection, method: str, path: str, body: object = None) -> dict[str, Any]:
    status, found = call(connection, method, path, body)
    assert status == 200, found
    answer: dict[str, Any] = found
    return answer


@pytest.mark.parametrize("split", ["auto", pytest.param("40-30-30", marks=pytest.mark.slow)])
def test_a_cache_keeps_payloads_and_changes_nothing(clicks: RunningStack, split: str) -> None:
    """Tiers of decoded and augmented samples stay empty."""
    sections: dict[str, Any] = {"online": None, "evaluation": None}
    alone = finished(clicks, pipeline("clicks", SPARSE, **sections), max_triggers=1)[1]
    cache = {"size": "20MB", "split": split}
    cached = finished(clicks, pipeline("clicks", SPARSE, cache=cache, **sections), max_triggers=1)[1]
    assert [trigger.weights_sha256 for trigger in cached] == [trigger.weights_sha256 for trigger in alone]
    served = cached[0].training_result.cache
    assert served is None or not any(served.num_cached.get(tier) for tier in ("decoded", "augmented"))


@pytest.mark.parametrize(
    ("name", "on"),
    [
        pytest.param("PerformanceTrigger", "predictions", marks=pytest.mark.slow),
        ("DataDriftTrigger", "embeddings"),
        pytest.param("StreamDetectorTrigger on distance", "predictions", marks=pytest.mark.slow),
        pytest.param("PerformanceTrigger", "embeddings", marks=pytest.mark.slow),
        pytest.param("DataDriftTrigger", "predictions", marks=pytest.mark.slow),
        pytest.param("StreamDetectorTrigger on distance", "embeddings", marks=pytest.mark.slow),
    ],
)
def test_triggers_that_look_at_a_model_give_it_its_features(clicks: RunningStack, name: str, on: str) -> None:
    """Each check passes samples through a model that was trained on features of columns."""
    trigger = copy.deepcopy(TRIGGER_SECTIONS[name])
    if name == "PerformanceTrigger":
        trigger["evaluation"]["dataset"] = {"dataset_id": "clicks", "batch_size": 16, "metrics": [{"name": "Accuracy"}]}
    else:
        trigger.get("distance", trigger)["on"] = on
    run, triggers = finished(clicks, pipeline("clicks", DENSE, trigger=trigger, online=None, evaluation=None))
    with clicks.client() as client:
        checks = client.supervisor.checks(run.run_id)
        rows = [client.preprocessing(trigger.model_id or 0) for trigger in triggers]
    assert checks
    assert all(made is not None and made.num_rows for made in rows)


def test_what_is_wrong_is_said_with_its_line(clicks: RunningStack) -> None:
    right = yaml.safe_load(pipeline("clicks", SPARSE))
    metric = {"id": "MMDDriftMetric", "decision_criterion": {"id": "ThresholdDecisionCriterion", "threshold": 1.0}}
    drift = {"id": "DataDriftTrigger", "metrics": {"m": metric}, "on": "payload"}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"data": {"dataset_id": "clicks", "record_layout": {"dtype": "u1"}}}, "data: the pipeline has a section `preprocessing`"),
        ({"preprocessing": None}, "data: exactly one of decode, bytes_parser_function"),
        ({"preprocessing": {**SPARSE, "format": None}}, "preprocessing.format: is required in a pipeline"),
        ({"data": {"dataset_id": "clicks", "preprocessing": {}}}, "data.preprocessing: preprocessing is a section of its own"),
        ({"trigger": drift}, "trigger.on: payloads are rows of columns here"),
    ]  # fmt: skip
    with clicks.client() as client:
        found = [problem for problem in client.check(clicks.pipeline_file("clicks", **right)) if problem.severity == "error"]
        assert found == []
        for sections, said in cases:
            problems = [str(problem) for problem in client.check(clicks.pipeline_file("clicks", **{**right, **sections}))]
            assert any(said in problem for problem in problems), problems


def test_services_and_command_see_the_same_columns(clicks: RunningStack) -> None:
    run, _ = finished(clicks, pipeline("clicks", DENSE, online=None, evaluation=None), max_triggers=1)
    with clicks.client() as client:
        shown = client.show(run.run_id).pipeline
        (model_id,) = client.models(run.run_id)["model_id"]
    assert shown == with_columns(shown)
    assert shown["data"]["preprocessing"]["columns"] == DENSE["columns"]
    done = clicks.modyn("models", "show", model_id)
    assert "training preprocessing" in done.stdout
    assert f"'rows': {INITIAL}" in done.stdout


@pytest.mark.slow  # It imports torch's compiler.
def test_a_version_is_exported_with_its_features_as_inputs(clicks: RunningStack, tmp_path: Path) -> None:
    run, _ = finished(clicks, pipeline("clicks", SPARSE, online=None, evaluation=None), max_triggers=1)
    with clicks.client() as client:
        (model_id,) = client.models(run.run_id)["model_id"]
        model, statistics = client.load_model(model_id), client.preprocessing(model_id)
    assert statistics is not None
    done = clicks.modyn("models", "export", str(model_id), tmp_path / "model.pt2", "--input", "features")
    assert done.returncode == 0, done.stderr
    program = torch.export.load(tmp_path / "model.pt2").module()
    features = statistics.transform(columns_of(list(range(200, 230)))).to_torch()
    assert isinstance(features, dict)
    torch.testing.assert_close(program(**features), given_to(model, features))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kills_count_no_sample_twice(own_stack: Callable[..., RunningStack]) -> None:
    """`kill -9` of workers, the trainer server and the supervisor: statistics, which are part of the hash of a version, are those of the run that was
    left alone."""
    stack = own_stack(trainer_server={"session_idle_s": 1.0})
    with stack.client() as client:
        add_records(client, "clicks", 1500)
        training = {
            **yaml.safe_load(pipeline("clicks", SPARSE))["training"],
            "checkpointing": {"activated": True, "interval": 3},
            "epochs_per_trigger": 3,
            "shuffle": True,
        }
        online = {**ONLINE, "trigger": {"id": "DataAmountTrigger", "num_samples": 150}}
        trigger = {"id": "DataAmountTrigger", "num_samples": 500}
        text = pipeline("clicks", SPARSE, training=training, online=online, trigger=trigger, evaluation=None)
        path = stack.pipeline_file("clicks", **yaml.safe_load(text))
        expected = client.wait(client.run(path).run_id)
        assert expected.state is RunState.FINISHED, expected.error
        names = (WORKERS, "trainer_server", WORKERS, "supervisor")
        for run_id in KilledStack(stack, client).runs_under_kills(path, names, num_kills=9, seed=13):
            assert differences(outcome(client, expected.run_id), outcome(client, run_id)) == []
