"""Columns that sections which decode samples get from the section `preprocessing`."""

from __future__ import annotations

import copy
from typing import Any

from modyn.config.pipeline import check_frame, load_pipeline
from modyn.config.preprocessing import with_columns
from modyn.dataset.config import DataConfig
from modyn.testing.stack import tiny_pipeline

SECTION: dict[str, Any] = {
    "format": "csv",
    "names": ["a", "b"],
    "columns": {"a": "number"},
    "components": [{"id": "Imputer"}],
    "statistics": "before_training",
}
SCHEMA = {"format": "csv", "names": ["a", "b"], "columns": {"a": "number"}}


def test_every_section_that_decodes_samples_has_the_columns() -> None:
    measured = {"id": "PerformanceTrigger", "evaluation": {"dataset": {"dataset_id": "d", "batch_size": 2}}}
    pipeline: dict[str, Any] = {
        "data": {"dataset_id": "d"},
        "preprocessing": SECTION,
        "trigger": {
            "id": "EnsembleTrigger",
            "subtriggers": {"a": {"id": "OfAPlugin", "inner": measured}, "b": {"id": "InitialTrigger"}},
        },
        "online": {"trigger": measured},
        "evaluation": {"datasets": [{"dataset_id": "d"}, {"dataset_id": "e"}], "handlers": []},
    }
    before = copy.deepcopy(pipeline)
    found = with_columns(pipeline)
    assert pipeline == before
    sections = [
        found["data"],
        found["trigger"]["subtriggers"]["a"]["inner"]["evaluation"]["dataset"],
        found["online"]["trigger"]["evaluation"]["dataset"],
        *found["evaluation"]["datasets"],
    ]
    assert [section["preprocessing"] for section in sections] == [SCHEMA] * 5
    assert with_columns(found) == found
    assert with_columns({"data": {"dataset_id": "d"}}) == {"data": {"dataset_id": "d"}}


def test_a_value_that_is_not_a_section_is_left_to_those_that_check_it() -> None:
    wrong: dict[str, Any] = {"preprocessing": SECTION, "data": 3, "trigger": [], "evaluation": {"datasets": [4, None]}}
    assert with_columns(wrong) == wrong
    assert with_columns({**wrong, "preprocessing": "json"}) == {**wrong, "preprocessing": "json"}


def test_services_are_sent_the_columns_with_the_section() -> None:
    text = tiny_pipeline("d", preprocessing={"format": "json", "columns": {"a": "number"}}, data={"dataset_id": "d"})
    pipeline = load_pipeline(text, "p.yaml")
    assert pipeline.section("data") == pipeline.as_dict()["data"]
    data = DataConfig.model_validate(pipeline.section("data"))
    assert data.preprocessing == {"format": "json", "columns": {"a": "number"}}
    assert not any((data.runs_per_sample, data.runs_code, data.keeps_decoded, data.keeps_augmented, data.may_draw))


def test_the_section_is_not_written_where_samples_are_decoded() -> None:
    """A written section would look as if it was derived from `preprocessing`, and could differ from it unnoticed."""
    own = {"dataset_id": "d", "preprocessing": SCHEMA}
    trigger = {"id": "PerformanceTrigger", "evaluation": {"dataset": own}}
    pipeline = {
        "data": own,
        "trigger": {"id": "EnsembleTrigger", "subtriggers": {"a": trigger}},
        "online": {"trigger": trigger},
        "evaluation": {"datasets": [{"dataset_id": "d"}, own]},
    }
    message = (
        "preprocessing is a section of its own, next to `data`: move it there, so that training, evaluation and serving share it"
    )
    assert [problem.path for problem in check_frame(pipeline) if problem.message == message] == [
        "data.preprocessing",
        "trigger.subtriggers.a.evaluation.dataset.preprocessing",
        "online.trigger.evaluation.dataset.preprocessing",
        "evaluation.datasets.1.preprocessing",
    ]
