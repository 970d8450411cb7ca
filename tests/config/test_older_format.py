"""Files in the older format have the same meaning as in the published system."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from modyn.config.base import Severity
from modyn.config.pipeline import load_pipeline
from modyn.config.published import PipelineSource, pipeline_source
from modyn.config.yaml_source import YamlSource, load_yaml
from tests.support.older_shapes import CLICKS, DAILY, F1, TWO_OPTIMIZERS, coreset, evaluated, older, strategy, todays
from tests.support.published_shapes import TO_CLASSES


def read(sections: dict[str, Any]) -> PipelineSource:
    """Return the file as the services receive it."""
    return pipeline_source(load_yaml(yaml.safe_dump(sections, sort_keys=False), "p.yaml"))


def refused(source: PipelineSource) -> list[str]:
    """Return paths and messages of the unavailable parts."""
    return [f"{note.path}: {note.message}" for note in source.notes if note.severity is Severity.ERROR]


def test_it_means_what_todays_format_says() -> None:
    dataset = evaluated()["datasets"][0]
    written = older(
        coreset("down", "GradNorm"), DAILY, TWO_OPTIMIZERS, **CLICKS, evaluation=evaluated(F1, result_writers=["json"])
    )
    pipeline = load_pipeline(yaml.safe_dump(written), "p.yaml").as_dict()
    assert pipeline["trigger"] == {"id": "TimeTrigger", "every": "1d"}
    assert pipeline["selection_strategy"] == {
        "name": "CoresetStrategy",
        "maximum_keys_in_memory": 5000,
        "storage_backend": "database",
        "limit": -1,
        "tail_triggers": 0,
        "downsampling_config": {"strategy": "GradNorm", "ratio": 25, "sample_then_batch": False},
    }
    assert pipeline["training"]["lr_scheduler"].pop("step_every") == "batch"
    assert pipeline["training"] == {
        name: value for name, value in written["training"].items() if name not in ("selection_strategy", "initial_pass")
    }
    f1 = {"name": "F1Score", "num_classes": 3, "average": "macro", "evaluation_transformer_function": TO_CLASSES}
    whole = {"type": "StaticEvalStrategy", "intervals": [["0001-01-01", None]]}
    assert pipeline["evaluation"] == {
        "device": "cpu",
        "datasets": [{**dataset, "metrics": [*dataset["metrics"], f1]}],
        "handlers": [{"execution_time": "after_training", "strategy": whole, "datasets": ["stubbed"]}],
    }


@pytest.mark.parametrize(
    ("written", "tail"),
    [(strategy(), 0), (strategy(resets=False), None), (strategy(resets=False, tail_triggers=3), 3)],
    ids=["new data", "all data", "the last triggers"],
)
def test_what_a_trigger_trains_on_is_kept(written: dict[str, Any], tail: int | None) -> None:
    assert read(older(written, DAILY)).data["selection_strategy"]["tail_triggers"] == tail


def test_a_mistake_has_the_line_of_the_file() -> None:
    source = read(older(strategy(), DAILY))
    written = load_yaml(yaml.safe_dump(older(strategy(), DAILY), sort_keys=False), "p.yaml")
    assert source.locate("selection_strategy.limit") == written.locate("training.selection_strategy.config.limit") > 1
    assert source.locate("trigger.every") == written.locate("trigger.trigger_config.trigger_every") > 1


def test_a_key_whose_place_is_taken_stays_and_is_refused() -> None:
    twice = {**older(strategy(), DAILY), "selection_strategy": strategy()}
    assert "selection_strategy" in read(twice).data["training"]


def test_several_f1_scores_of_a_dataset_get_names_of_their_own() -> None:
    averages = ("weighted", "macro", "micro")
    section = evaluated(*({"name": "F1Score", "num_classes": 3, "average": average} for average in averages))
    source = read(todays(evaluation=section))
    _, *scores = source.data["evaluation"]["datasets"][0]["metrics"]
    assert [score.get("label") for score in scores] == [None, "F1Score-macro", "F1Score-micro"]
    assert [note.path for note in source.notes] == ["evaluation.datasets.0.metrics.2", "evaluation.datasets.0.metrics.3"]
    names = ("F1-score", "WeightedF1-score")
    section = evaluated(*({"name": name, "config": {"num_classes": 3}} for name in names))
    _, *scores = read(older(strategy(), DAILY, evaluation=section)).data["evaluation"]["datasets"][0]["metrics"]
    assert [(score.get("average"), score.get("label")) for score in scores] == [(None, None), ("weighted", "F1Score-weighted")]


def test_f1_scores_with_one_average_are_numbered() -> None:
    section = evaluated(*({"name": "F1Score", "num_classes": classes, "average": "micro"} for classes in (3, 3, 4, 5)))
    source = read(todays(evaluation=section))
    _, *scores = source.data["evaluation"]["datasets"][0]["metrics"]
    assert [score.get("label") for score in scores] == [None, "F1Score-micro", "F1Score-micro-3", "F1Score-micro-4"]
    assert source.notes[1].message == "gets the label `F1Score-micro-3`, because another metric has the label `F1Score`"


def test_a_value_that_is_written_otherwise_today_is_told() -> None:
    metric = {"id": "AlibiDetectMmdDriftMetric", "device": "gpu"}
    source = read({**todays(evaluation=evaluated()), "trigger": {"id": "DataDriftTrigger", "metrics": {"mmd": metric}}})
    assert source.data["trigger"]["metrics"]["mmd"]["device"] == "cuda"
    (note,) = source.notes
    assert (note.path, note.message) == ("trigger.metrics.mmd.device", "is written as `cuda` today")
    assert note.severity is Severity.WARNING


def with_each_value_replaced(data: Any, value: Any) -> Iterator[Any]:
    """Yield one copy of the data for each value, with this value replaced."""
    yield value
    for key, item in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        for changed in with_each_value_replaced(item, value):
            yield {**data, key: changed} if isinstance(data, dict) else [*data[:key], changed, *data[key + 1 :]]


@pytest.mark.parametrize("value", [None, 0, "x", [["x"]], {"x": ["x"]}], ids=repr)
def test_no_wrong_value_breaks_the_conversion(value: Any) -> None:
    sections = older(coreset("down", "Loss", tail_triggers=3), DAILY, TWO_OPTIMIZERS, **CLICKS, evaluation=evaluated(F1))
    changed = [data for data in with_each_value_replaced(sections, value) if isinstance(data, dict)]
    assert len(changed) > 80
    for data in changed:
        pipeline_source(YamlSource("p.yaml", data, {}))


def test_todays_format_is_not_changed() -> None:
    sections = todays({"lr_scheduler": {"name": "StepLR", "config": {"step_size": 1}}}, evaluation=evaluated())
    source = read(sections)
    assert source.data == sections
    assert source.notes == ()


def test_what_is_not_available_is_refused_once_and_says_what_to_do() -> None:
    first = {"activated": True, "reference": "amount", "amount": 0.5}
    source = read(older(strategy(), DAILY, {"initial_pass": first, "generative": True}))
    assert refused(source) == [
        "training.initial_pass: is not available here: `initial_model` and `initial_model_id` decide where the first trigger starts from; "
        "remove the key",
        "training.generative: is not available here: models are trained on labels; remove the key",
    ]
    assert not source.data["training"].keys() & {"initial_pass", "generative"}


def test_the_bound_of_gradients_is_kept_and_0_means_none() -> None:
    assert read(todays({"grad_norm": 0.5})).data["training"]["gradient_clip_norm"] == 0.5
    assert not read(todays({"grad_norm": 0})).data["training"].keys() & {"grad_norm", "gradient_clip_norm"}
