"""Models with features of columns: the input from the evaluator, and compatible sections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from modyn.config.preprocessing import with_columns
from modyn.errors import ConfigError
from modyn.evaluator.config import check_evaluation, load_dataset
from modyn.evaluator.evaluate import EvaluationInput, evaluate, measure
from modyn.evaluator.records import InIntervals, OutputKind
from modyn.evaluator.session_model import SessionModel
from modyn.evaluator.trigger_section import check_trigger
from modyn.preprocessing import Preprocessing
from modyn.records import Interval
from modyn.supervisor.triggers import with_defaults
from modyn.testing.fake_storage import FakeStorage
from tests.support.column_samples import DENSE, columns_of, json_row, preprocessing_of_keys
from tests.support.training import RecordedReport, TrainingRoom, small_pipeline

ENTRY: dict[str, Any] = {"dataset_id": "test", "batch_size": 7, "metrics": [{"name": "Accuracy"}]}
PIPELINE: dict[str, Any] = with_columns(
    {"preprocessing": DENSE, "data": {"dataset_id": "test"}, "evaluation": {"datasets": [ENTRY], "handlers": []}}
)


class Given(nn.Module):
    """Predicts class 0, and records its input."""

    def __init__(self) -> None:
        super().__init__()
        self.last_layer = nn.Linear(3, 2)
        self.given: list[torch.Tensor] = []

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self.given.append(data.clone())
        logits: torch.Tensor = self.last_layer(data)
        return logits


def evaluation_input(statistics: Preprocessing, num_samples: int = 30) -> EvaluationInput:
    fake = FakeStorage()
    fake.add_dataset("test")
    payloads = [json_row(key) for key in range(num_samples)]
    fake.add_samples("test", range(num_samples), [0] * num_samples, payloads)
    dataset = load_dataset(PIPELINE["evaluation"]["datasets"][0])
    source = InIntervals([Interval()])
    return EvaluationInput(dataset, source, fake.client(), fake.payload_client(), preprocessing=statistics)


def test_a_model_is_given_features_by_its_statistics_which_do_not_change() -> None:
    statistics = preprocessing_of_keys(DENSE, list(range(12)))
    before, model = statistics.to_bytes(), Given()
    (score,) = evaluate(model, evaluation_input(statistics))
    assert (score.num_samples, statistics.to_bytes()) == (30, before)
    given = torch.cat(model.given)
    assert given.numpy().tobytes() == statistics.transform(columns_of(list(range(30)))).dense.tobytes()


@pytest.mark.parametrize("kind", [OutputKind.LOGITS, OutputKind.EMBEDDINGS, OutputKind.OUTCOMES])
def test_what_triggers_ask_of_a_model_is_of_the_same_features(kind: OutputKind) -> None:
    statistics, model = preprocessing_of_keys(DENSE, list(range(12))), Given()
    rows = list(measure(model, evaluation_input(statistics), kind))
    assert sum(len(part.keys) for part in rows) == 30
    given = np.concatenate([batch.numpy() for batch in model.given])
    assert given.tobytes() == statistics.transform(columns_of(list(range(30)))).dense.tobytes()


def test_a_version_without_statistics_and_samples_that_are_not_columns_are_refused(tmp_path: Path) -> None:
    room = TrainingRoom(tmp_path)
    trained = room.train(small_pipeline()).trained
    connection: Any = RecordedReport()
    models: Any = room.models
    connection.memory = {}
    model = SessionModel.of(trained.model_id, models, tmp_path, connection)
    columns, tensors = (
        load_dataset(PIPELINE["evaluation"]["datasets"][0]),
        load_dataset({**ENTRY, "record_layout": {"dtype": "u1"}}),
    )
    assert model.preprocessing(tensors) is None
    with pytest.raises(ConfigError, match=f"model {trained.model_id} has no statistics"):
        model.preprocessing(columns)
    with_them = SessionModel(3, "", Given(), preprocessing_of_keys(DENSE))
    assert with_them.preprocessing(columns) is with_them.statistics
    with pytest.raises(ConfigError, match="model 3 takes features of columns"):
        with_them.preprocessing(tensors)


def test_an_entry_needs_no_parser_and_may_have_none() -> None:
    assert check_evaluation(PIPELINE) == []
    both = with_columns({**PIPELINE, "evaluation": {"datasets": [{**ENTRY, "record_layout": {"dtype": "u1"}}]}})
    (found,) = check_evaluation(both)
    assert (found.path, "remove one of the two" in found.message) == ("evaluation.datasets.0", True)


def test_payloads_that_are_rows_of_columns_are_not_compared() -> None:
    drift = {"id": "DataDriftTrigger", "metrics": {}, "on": "payload"}
    detector = {
        "id": "StreamDetectorTrigger",
        "on": "distance",
        "distance": {"on": "payload", "metric": {"id": "MMDDriftMetric"}},
    }
    trigger = with_defaults({"id": "EnsembleTrigger", "subtriggers": {"a": drift, "b": detector}})
    paths = [problem.path for problem in check_trigger({**PIPELINE, "trigger": trigger}) if "rows of columns" in problem.message]
    assert paths == ["trigger.subtriggers.a.on", "trigger.subtriggers.b.distance.on"]
    without = check_trigger({"data": {}, "trigger": trigger})
    assert not [problem for problem in without if "rows of columns" in problem.message]
