"""The JSON Schema of the pipeline format: valid, complete, and of one mind with the loader; and the pages of `docs/reference/`, made from it."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from modyn.config.pipeline import NOT_YET, check_frame, load_pipeline
from modyn.config.policy import check_policy
from modyn.config.system import SERVICES, SystemConfig
from modyn.config.yaml_source import load_yaml
from modyn.evaluator.drift.projections import PROJECTIONS
from modyn.reference.explain import explain, variants_of, walk
from modyn.reference.pages import _OTHER_BLOCKS, FOLDER, fill
from modyn.reference.schema import JsonSchema, pipeline_json_schema
from modyn.registry import Registry
from modyn.storage.formats import REGISTRY
from modyn.storage.formats.timestamps import name_pattern
from modyn.supervisor.detectors import DETECTORS
from modyn.supervisor.evaluation import EVALUATION_STRATEGIES, check_handlers
from modyn.supervisor.triggers import TRIGGERS

ROOT = Path(__file__).parents[2]

PIPELINE = """\
pipeline: {name: example, version: 1.0.0}
model: {id: ResNet18, config: {num_classes: 42}}
data:
  dataset_id: mnist
  transformations: ["transforms.Normalize((0.1,), (0.3,))"]
  bytes_parser_function: |
    def bytes_parser_function(data: memoryview) -> Image:
      return Image.open(io.BytesIO(data)).convert("RGB")
trigger: {id: TimeTrigger, every: 1d, start_timestamp: 2020-01-01}
training:
  use_previous_model: True
  batch_size: 1234
  optimizers:
    - name: default
      algorithm: SGD
      source: PyTorch
      param_groups: [{module: model, config: {lr: 0.1}}]
  optimization_criterion: {name: CrossEntropyLoss}
  lr_scheduler: {name: CosineAnnealingLR, step_every: batch, config: {T_max: MODYN_NUM_BATCHES}}
selection_strategy:
  name: CoresetStrategy
  maximum_keys_in_memory: 1000
  storage_backend: database
  tail_triggers: 0
  presampling_config: {strategy: Random, ratio: 50}
  downsampling_config: {strategy: "No"}
model_storage: {full_model_strategy: {name: PyTorchFullModel, zip: true}}
evaluation:
  device: cpu
  datasets:
    - dataset_id: mnist_test
      bytes_parser_function: tests.parsers:parse
      batch_size: 64
      dataloader_workers: 1
      metrics: [{name: Accuracy, topn: 1}]
  handlers:
    - name: slices
      execution_time: after_training
      models: matrix
      datasets: [mnist_test]
      strategy: {type: SlicingEvalStrategy, eval_every: 1y, eval_start_from: 0, eval_end_at: 2020-01-01}
"""


@pytest.fixture(scope="module")
def schema() -> JsonSchema:
    return pipeline_json_schema()


def _pipeline() -> dict[str, Any]:
    return dict(load_yaml(PIPELINE, "p.yaml").data)


def _errors(schema: JsonSchema, data: object) -> list[str]:
    return [error.message for error in Draft202012Validator(schema).iter_errors(data)]


def test_it_is_a_valid_schema_whose_references_are_triggers_within_triggers(schema: JsonSchema) -> None:
    """This holds for `trigger` and `online.trigger`."""
    Draft202012Validator.check_schema(schema)
    assert str(schema).count("$ref") == str(schema).count("'$ref': '#/properties/trigger'") == 2


_METRIC = {"id": "MMDDriftMetric", "decision_criterion": {"id": "ThresholdDecisionCriterion", "threshold": 0.5}}
_DRIFT = {"id": "DataDriftTrigger", "evaluation_interval_data_points": 10, "metrics": {"mmd": _METRIC}}


def test_policies_within_a_trigger_are_checked_at_any_depth(schema: JsonSchema) -> None:
    def errors(trigger: dict[str, Any], levels: int) -> list[str]:
        for _ in range(levels):
            trigger = {"id": "EnsembleTrigger", "subtriggers": {"inner": trigger}}
        return _errors(schema, {**_pipeline(), "trigger": trigger})

    for levels in range(3):
        assert errors(_DRIFT, levels) == []
        assert errors({**_DRIFT, "metrics": {"mmd": {**_METRIC, "id": "MDDriftMetric"}}}, levels)
        assert errors({**_DRIFT, "metrics": {"mm d": _METRIC}}, levels)
        assert errors({"id": "TimTrigger", "every": "1d"}, levels)


def test_a_whole_pipeline_passes(schema: JsonSchema) -> None:
    data = _pipeline()
    assert _errors(schema, data) == []
    assert check_frame(data) == []
    assert check_policy(TRIGGERS, data["trigger"], "id", "trigger") == []
    assert check_handlers(data["evaluation"]) == []


@pytest.mark.parametrize("path", sorted((ROOT / "examples").rglob("*pipeline*.yaml")), ids=lambda path: path.parent.name)
def test_examples_are_right(schema: JsonSchema, path: Path) -> None:
    pipeline = load_pipeline(path.read_text(), path.name)
    evaluation = pipeline.evaluation or {}
    assert check_policy(TRIGGERS, pipeline.trigger, "id", "trigger") == []
    assert check_handlers(evaluation) == []
    assert _errors(schema, pipeline.as_dict()) == []


def test_every_registered_policy_is_in_it(schema: JsonSchema) -> None:
    titles = {variant["title"] for field in walk(schema) for variant in variants_of(field.schema)}
    assert set(TRIGGERS) | set(EVALUATION_STRATEGIES) <= titles
    assert {"ResNet18", "SmallCNN", "NewDataStrategy", "CoresetStrategy", "Random", "Accuracy", "F1Score", "RocAuc"} <= titles


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("pipeline", "nme"), "x"),
        (("stuff",), {}),
        (("model", "config", "num_class"), 3),
        (("model", "id"), "ResNet19"),
        (("trigger", "id"), "TimTrigger"),
        (("trigger", "every"), "1 fortnight"),
        (("trigger", "every"), 0),
        (("trigger", "num_samples"), 3),
        (("training", "batch_size"), 0),
        (("training", "batch_size"), "many"),
        (("training", "optimizers"), []),
        (("training", "lr_scheduler", "step_every"), "year"),
        (("data", "dataset_id"), 3),
        (("selection_strategy", "limit"), -2),
        (("selection_strategy", "limit_reset"), "lastX"),
        (("selection_strategy", "presampling_config", "strategy"), "Randm"),
        (("model_storage", "full_model_strategy", "name"), "PickleModel"),
        (("evaluation", "handlers", 0, "models"), "best"),
        (("evaluation", "handlers", 0, "strategy", "every"), "1d"),
        (("evaluation", "datasets", 0, "metrics"), [{"name": "Acuracy"}]),
        (("evaluation", "datasets", 0, "batch_size"), 0),
    ],
    ids=str,
)
def test_mistakes_are_found(schema: JsonSchema, path: tuple[str | int, ...], value: object) -> None:
    data: Any = copy.deepcopy(_pipeline())
    place = data
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    assert _errors(schema, data)


@pytest.mark.parametrize("section", ["pipeline", "model", "data", "trigger", "training", "selection_strategy"])
def test_required_sections(schema: JsonSchema, section: str) -> None:
    data = _pipeline()
    del data[section]
    assert any(section in message for message in _errors(schema, data))


@pytest.mark.parametrize("section", NOT_YET)
def test_sections_still_to_come_are_refused(schema: JsonSchema, section: str) -> None:
    assert _errors(schema, {**_pipeline(), section: {}})


def test_examples_and_defaults_are_values_that_are_allowed(schema: JsonSchema) -> None:
    told = 0
    for field in walk(schema):
        for example in field.schema.get("examples", []):
            assert _errors(field.schema, example) == [], f"the example of {field.path}"
            told += 1
        if "default" in field.schema:
            assert _errors(field.schema, field.schema["default"]) == [], f"the default of {field.path}"
        for example in field.schema.get("examples", []):
            names_one = isinstance(example, dict) and {"id", "name", "strategy", "type"} & example.keys()
            assert not names_one or variants_of(field.schema), f"{field.path} is checked, so that its example is right"
    assert told > 10


def test_examples_of_triggers_pass_the_checks_of_the_policies(schema: JsonSchema) -> None:
    """Examples that name a policy are checked by the same functions that check a pipeline."""
    registries: dict[str, Registry[Any]] = {"projection": PROJECTIONS, "detector": DETECTORS, "warmup_policy": TRIGGERS}
    told = set()
    for field in walk(schema):
        name = field.path.rpartition(".")[2]
        for example in field.schema.get("examples", []) if name in registries else ():
            assert check_policy(registries[name], example, "id", field.path) == []
            told.add(name)
    assert told == registries.keys()


def test_projections_are_in_it(schema: JsonSchema) -> None:
    for path in ("trigger.projection", "trigger.distance.projection"):
        assert "RandomProjection" in explain(path, schema)
        assert "num_components" in explain(f"{path}.num_components", schema)
    assert "values of a sample after the projection" in explain("PCAProjection", schema)
    data: Any = _pipeline()
    metric = {"id": "KSDriftMetric", "decision_criterion": {"id": "ThresholdDecisionCriterion", "threshold": 0.1}}
    drift = {"id": "DataDriftTrigger", "evaluation_interval_data_points": 10, "metrics": {"ks": metric}}
    for projection, is_right in (
        (None, True),
        ({"id": "PCAProjection", "num_components": 3}, True),
        ({"id": "PCAProjection"}, False),
        ({"id": "PCAProjektion", "num_components": 3}, False),
        ({"id": "RandomProjection", "num_components": 0}, False),
    ):
        data["trigger"] = {**drift, "projection": projection}
        assert (_errors(schema, data) == []) is is_right, projection


def test_every_field_says_what_it_means(schema: JsonSchema) -> None:
    silent = sorted({f"{field.path} of {field.variant}" for field in walk(schema) if not field.schema.get("description")})
    assert silent == []


@pytest.mark.parametrize("page", sorted(FOLDER.glob("*.md")), ids=lambda path: path.stem)
def test_the_generated_blocks_of_the_pages_are_up_to_date(page: Path) -> None:
    written = page.read_text()
    assert written.count("<!-- generated: ") == written.count("<!-- end -->") > 0
    assert written == fill(written), "run: make docs"


def test_each_block_is_in_one_page(schema: JsonSchema) -> None:
    found = [name for page in FOLDER.glob("*.md") for name in re.findall(r"<!-- generated: (\w+) -->", page.read_text())]
    assert sorted(found) == sorted({*schema["properties"], *_OTHER_BLOCKS})


def test_each_section_has_a_page(schema: JsonSchema) -> None:
    assert schema["properties"].keys() <= {page.stem for page in FOLDER.glob("*.md")}


def test_generated_blocks_are_replaced_and_the_prose_is_kept() -> None:
    page = "before\n<!-- generated: dataset -->\nold\n<!-- end -->\nbetween\n<!-- generated: formats -->\n<!-- end -->\nafter\n"
    filled = fill(page)
    assert filled.startswith("before\n<!-- generated: dataset -->\n\n- **`name`** (text, **required**): ")
    assert "old" not in filled.partition("between")[0].splitlines()
    assert filled.partition("\nbetween\n")[2].startswith("<!-- generated: formats -->\n\n### Options of several policies")
    assert filled.endswith("\n\n<!-- end -->\nafter\n")
    assert fill(filled) == filled


def test_the_page_of_the_pipeline_names_the_sections_to_come() -> None:
    assert ", ".join(f"`{name}`" for name in NOT_YET) in (FOLDER / "pipeline.md").read_text()


def test_the_page_of_datasets_has_every_option_of_every_format() -> None:
    written = (FOLDER / "formats.md").read_text()
    for format_id in REGISTRY.builtin:
        assert f"### `{format_id}`" in written
        for option, field in REGISTRY.get(format_id).Config.model_fields.items():
            assert f"`{option}`" in written.partition(f"### `{format_id}`")[2].partition("###")[0]
            assert field.description, f"{format_id}.{option} says nothing"


def test_the_page_of_the_system_file_has_every_field() -> None:
    written = (FOLDER / "system.md").read_text()
    for service in SERVICES:
        for name, field in type(getattr(SystemConfig(), service)).model_fields.items():
            assert f"- **`{name}`** (" in written
            assert field.description, f"{service}.{name} says nothing"


@pytest.mark.parametrize("source", ["", r"name:(?P<date>\d{4}-\d\d-\d\d)", "column:3", "field:8", "field:8:4"])
def test_the_forms_of_timestamp_source_that_are_told_are_those_that_are_read(source: str) -> None:
    name_pattern(source)
    written = (ROOT / "docs/how-to/datasets.md").read_text()
    assert {"": "`''`", "name": "`name:REGEX`", "column": "`column:N`", "field": "`field:OFFSET:SIZE`"}[
        source.partition(":")[0]
    ] in written
