"""`modyn explain`: what it tells of a field, of a policy, of a section, and of what does not exist."""

from __future__ import annotations

import pytest

from modyn.errors import NotFoundError
from modyn.reference.explain import explain, find_fields, type_text
from modyn.reference.schema import JsonSchema, pipeline_json_schema


@pytest.fixture(scope="module")
def schema() -> JsonSchema:
    return pipeline_json_schema()


def test_a_field(schema: JsonSchema) -> None:
    assert (
        explain("training.batch_size", schema)
        == "training.batch_size\n  samples in a batch\n  type: integer, at least 1\n  required"
    )


def test_a_field_with_default_and_example(schema: JsonSchema) -> None:
    text = explain("trigger.start_timestamp", schema)
    assert text.splitlines()[0] == "trigger.start_timestamp  (of TimeTrigger)"
    assert "  type: timestamp or date, or null" in text
    assert "  default: null" in text
    assert "  example: 2020-01-01" in text


def test_items_of_lists_need_no_number(schema: JsonSchema) -> None:
    text = explain("training.optimizers.algorithm", schema)
    assert explain("training.optimizers.0.algorithm", schema) == text
    assert "torch.optim" in text


def test_a_field_that_several_policies_share_is_told_once(schema: JsonSchema) -> None:
    assert explain("selection_strategy.limit", schema).count("selection_strategy.limit") == 1
    assert "(of CoresetStrategy, FreshnessSamplingStrategy, NewDataStrategy)" in explain("selection_strategy.limit", schema)


def test_a_field_that_policies_mean_differently_is_told_for_each(schema: JsonSchema) -> None:
    text = explain("model.config.num_classes", schema)
    assert "(of SmallCNN)" in text
    assert text.count("model.config.num_classes") > 1
    assert explain("model.SmallCNN.config.num_classes", schema).startswith("model.config.num_classes  (of SmallCNN)\n")
    assert explain("model.SmallCNN.config.num_classes", schema).count("type:") == 1


def test_without_a_field_the_sections_are_found(schema: JsonSchema) -> None:
    assert [field.path for field in find_fields("", schema)] == list(schema["properties"])


@pytest.mark.parametrize("path", ["TimeTrigger", "trigger.TimeTrigger"])
def test_a_policy(schema: JsonSchema, path: str) -> None:
    lines = explain(path, schema).splitlines()
    assert lines[0] == "trigger: TimeTrigger"
    assert lines[1].startswith("  Fires before the first sample at or past the end of a period")
    assert "    every            length of a period" in lines
    assert ">>>" not in explain(path, schema)


@pytest.mark.parametrize("path", ["", " ", "."])
def test_nothing_in_particular_lists_the_sections(schema: JsonSchema, path: str) -> None:
    assert "    training            how a model is trained" in explain(path, schema).splitlines()


def test_a_section_lists_its_keys_or_policies(schema: JsonSchema) -> None:
    assert "    batch_size  " in explain("training", schema)
    assert "  one of:" in explain("trigger", schema).splitlines()
    assert "    SlicingEvalStrategy  " in explain("evaluation.handlers.strategy", schema)


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("training.batchsize", "'training.batch_size'"),
        ("trainig.batch_size", "'training.batch_size'"),
        ("batch_size", "'training.batch_size'"),
        ("TimTrigger", "'TimeTrigger'"),
        ("TimeTrigger.num_samples", "'trigger.num_samples'"),
    ],
)
def test_what_does_not_exist_names_what_is_near(schema: JsonSchema, path: str, near: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        explain(path, schema)
    assert caught.value.message.startswith(f"the pipeline format has no field '{path}', did you mean ")
    assert near in caught.value.message


def test_nothing_near(schema: JsonSchema) -> None:
    with pytest.raises(NotFoundError, match="has no field 'xyzzy'. `modyn explain` lists the sections"):
        explain("xyzzy", schema)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string"}, "text"),
        ({"type": "string", "maxLength": 5}, "text, at most 5 characters"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "number, above 0, at most 1"),
        ({"enum": ["a", 3, None]}, "one of a, 3, null"),
        ({"const": False}, "false"),
        (
            {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2},
            "list of (integer, at least 1), at least 2",
        ),
        ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}, "list of (integer) and (text)"),
        ({}, "any value"),
    ],
)
def test_types_in_words(schema: JsonSchema, text: str) -> None:
    assert type_text(schema) == text


def test_fields_can_be_had_as_data() -> None:
    (field,) = find_fields("training.batch_size")
    assert field.is_required
    assert field.schema["minimum"] == 1
    with pytest.raises(NotFoundError, match=r"training\.batch_size"):
        find_fields("training.batch_sise")
