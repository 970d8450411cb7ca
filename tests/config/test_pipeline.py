"""The top level of a pipeline file: accepted files, and the message for each mistake."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from modyn.config.pipeline import NOT_YET, check_frame, load_pipeline
from modyn.errors import ConfigError

FIGURE_4 = """\
pipeline:
  name: example
model:
  id: ResNet18
  config:
    num_classes: 42
data:
  dataset_id: mnist
  transformations: ["transforms.Normalize((0.1,), (0.3,))"]
  bytes_parser_function: |
    def bytes_parser_function(data: memoryview) -> Image:
      return Image.open(io.BytesIO(data)).convert("RGB")
trigger:
  id: DataAmountTrigger
  num_samples: 100
training:
  use_previous_model: True
  batch_size: 1234
  optimizers:
    - name: default
      algorithm: SGD
      source: PyTorch
      param_groups: [{module: model, config: {lr: 0.1}}]
  optimization_criterion:
    name: "CrossEntropyLoss"
selection_strategy:
  name: "CoresetStrategy"
  storage_backend: "database"
  tail_triggers: 0
  presampling_config: {strategy: Random, ratio: 50}
  downsampling_config: {strategy: "No"}
model_storage:
  full_model_strategy:
    name: "PyTorchFullModel"
  incremental_model_strategy:
    name: "WeightsDifference"
evaluation:
"""
"""Figure 4 of the SIGMOD'25 paper, with values in place of its ellipses."""

EVALUATION: dict[str, Any] = {
    "device": "cpu",
    "datasets": [{"dataset_id": "mnist_test", "batch_size": 64, "dataloader_workers": 1, "metrics": [{"name": "Accuracy"}]}],
    "handlers": [{"name": "all"}],
}


def _figure_4() -> dict[str, Any]:
    data = yaml.safe_load(FIGURE_4)
    assert isinstance(data, dict)
    return data


def test_the_published_example_is_accepted() -> None:
    pipeline = load_pipeline(FIGURE_4, "p.yaml")
    assert pipeline.name == "example"
    assert pipeline.dataset_id == "mnist"
    assert pipeline.trigger == {"id": "DataAmountTrigger", "num_samples": 100}
    assert pipeline.training.use_previous_model is True
    assert pipeline.training.initial_model_id is None
    assert pipeline.training.seed is None
    assert pipeline.evaluation is None
    assert pipeline.num_samples_to_pass(0) is None


def test_one_line_sections_are_the_same() -> None:
    block = load_pipeline(FIGURE_4, "p.yaml")
    flow = load_pipeline(
        FIGURE_4.replace(
            "trigger:\n  id: DataAmountTrigger\n  num_samples: 100", "trigger: {id: DataAmountTrigger, num_samples: 100}"
        ),
        "p.yaml",
    )
    assert flow.as_dict() == block.as_dict()


def test_what_is_sent_to_services_is_what_was_written() -> None:
    pipeline = load_pipeline(FIGURE_4, "p.yaml")
    written = {name: value for name, value in _figure_4().items() if value is not None}
    assert pipeline.as_dict() == written
    assert json.loads(json.dumps(pipeline.as_dict())) == written
    pipeline.as_dict()["trigger"]["num_samples"] = 7
    pipeline.trigger["num_samples"] = 7
    assert pipeline.trigger["num_samples"] == 100, "a copy is handed out"


def test_values_that_the_supervisor_reads() -> None:
    data = _figure_4()
    data["training"] |= {"seed": 0, "num_samples_to_pass": [10, 20], "initial_model": "pretrained", "initial_model_id": 3}
    data["evaluation"] = EVALUATION
    pipeline = load_pipeline(yaml.safe_dump(data), "p.yaml")
    assert pipeline.training.seed == 0, "0 is a value, not missing"
    assert pipeline.training.initial_model_id == 3
    assert [pipeline.num_samples_to_pass(i) for i in range(3)] == [10, 20, None]
    assert pipeline.evaluation == EVALUATION


def test_a_version_may_look_like_a_number() -> None:
    assert (
        load_pipeline(FIGURE_4.replace("name: example", "name: example\n  version: 1.0"), "p.yaml").frame.pipeline.version
        == "1.0"
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "selection_strategy:",
            "selection_stratgy:",
            "p.yaml:26: selection_stratgy: there is no such key, did you mean 'selection_strategy'?",
        ),
        ("selection_strategy:", "selection_stratgy:", "p.yaml:1: selection_strategy: is required"),
        ("  id: ResNet18", "  ident: ResNet18", "p.yaml:4: model.ident: there is no such key"),
        ("  name: example", "  name: [1]", "p.yaml:2: pipeline.name: [1] is wrong: input should be a valid string"),
        ("  dataset_id: mnist", "  dataset_id: ''", "p.yaml:8: data.dataset_id: '' is wrong"),
        (
            "  use_previous_model: True",
            "  use_previous_model: perhaps",
            "p.yaml:17: training.use_previous_model: 'perhaps' is wrong",
        ),
        ("  batch_size: 1234", "  seed: -1", "p.yaml:18: training.seed: -1 is wrong: input should be greater than or equal to 0"),
        ("  batch_size: 1234", "  num_samples_to_pass: [5, 0]", "p.yaml:18: training.num_samples_to_pass.1: 0 is wrong"),
        ("trigger:\n  id: DataAmountTrigger\n  num_samples: 100", "trigger: daily", "p.yaml:13: trigger: 'daily' is wrong"),
        ("evaluation:", "evaluation: {datasets: [{dataset_id: a}]}", "p.yaml:37: evaluation.handlers: is required"),
        ("evaluation:", "evaluation: {datasets: [{dataset_id: a}], handlers: []}", "p.yaml:37: evaluation.handlers: [] is wrong"),
        ("evaluation:", "evaluation: {datasets: []}", "p.yaml:37: evaluation.datasets: [] is wrong"),
        (
            "evaluation:",
            "evaluation: {datasets: [{dataset_id: a}], handlrs: []}",
            "evaluation.handlrs: there is no such key, did you mean 'handlers'?",
        ),
        (
            "evaluation:",
            "evaluation: {datasets: [{dataset_id: a}, {dataset_id: a}]}",
            "evaluation.datasets.1.dataset_id: 'a' is listed twice",
        ),
        (
            "evaluation:",
            "evaluation: {datasets: [{dataset_id: a}], after_training_evaluation_workers: 0}",
            "p.yaml:37: evaluation.after_training_evaluation_workers: 0 is wrong",
        ),
    ],
)
def test_mistakes_name_line_path_and_what_is_allowed(old: str, new: str, expected: str) -> None:
    assert old in FIGURE_4
    with pytest.raises(ConfigError) as caught:
        load_pipeline(FIGURE_4.replace(old, new, 1), "p.yaml")
    assert any(line.startswith(expected) or expected in line for line in caught.value.message.splitlines()), caught.value.message


def test_all_mistakes_are_told_at_once_in_the_order_of_lines() -> None:
    text = FIGURE_4.replace("name: example", "nme: example").replace("dataset_id: mnist", "dataset: mnist") + "stuff: 1\n"
    with pytest.raises(ConfigError) as caught:
        load_pipeline(text, "p.yaml")
    lines = caught.value.message.splitlines()
    assert {line.split(": ")[1] for line in lines} == {"pipeline.nme", "pipeline.name", "data.dataset_id", "stuff"}
    numbers = [int(line.split(":")[1]) for line in lines]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize("section", NOT_YET)
def test_sections_that_are_still_to_come_are_refused_by_name(section: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_pipeline(f"{FIGURE_4}{section}: {{}}\n", "p.yaml")
    assert caught.value.message == f"p.yaml:38: {section}: this section is not available yet; remove it"


def test_an_empty_mapping_lacks_every_required_section() -> None:
    problems = check_frame({})
    assert {problem.path for problem in problems} == {"pipeline", "model", "training", "data", "trigger", "selection_strategy"}
    assert {problem.message for problem in problems} == {"is required"}
