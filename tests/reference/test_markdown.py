"""Fields of a section as Markdown: each policy and each shared option is described once, and referred to from then on."""

from __future__ import annotations

import pytest

from modyn.reference.markdown import Described, field_lists
from modyn.reference.schema import JsonSchema, pipeline_json_schema


def _policy(name: str, **options: JsonSchema) -> JsonSchema:
    chooser: JsonSchema = {"const": name}
    return {"title": name, "description": f"What {name} does.", "properties": {"id": chooser, **options}, "required": ["id"]}


def _lines(schema: JsonSchema) -> list[str]:
    return "\n".join(field_lists(schema, "##", "trigger", Described("trigger"))).splitlines()


def test_a_choice_that_occurs_twice_is_described_once() -> None:
    bound = {"oneOf": [_policy("Above", limit={"type": "number"})]}
    lines = _lines(
        {"oneOf": [_policy("Drift", criterion=bound), _policy("Performance", criterion={**bound, "description": "what"})]}
    )
    assert lines.count("#### `Above`") == 1
    assert "- **`criterion`** (mapping, one of Above, optional): " in lines
    assert "- **`criterion`** (mapping, one of Above, as `trigger.criterion` of `Drift`, optional): What." in lines
    assert "### `trigger.criterion` of `Performance`" not in lines


def test_of_two_fields_with_one_choice_the_second_refers_to_the_first() -> None:
    choice = {"oneOf": [_policy("Craig"), _policy("Loss", seed={"type": "integer"})]}
    lines = _lines({"properties": {"config": choice, "list": {"anyOf": [{"type": "array", "items": choice}, {"type": "null"}]}}})
    assert "- **`list`** (list of mappings, one of Craig, Loss, as `trigger.config`, optional): " in lines
    assert [line for line in lines if line.startswith("#")] == ["## `trigger.config`", "### `Craig`", "### `Loss`"]


def test_a_choice_among_its_holders_refers_to_the_whole() -> None:
    """A policy is described where it is chosen, not below the first one that may hold it."""
    amount = _policy("Amount", num_samples={"type": "integer"})
    ensemble = _policy("Ensemble", subtriggers={"type": "array", "items": {"oneOf": [amount]}, "description": "who votes"})
    lines = _lines({"oneOf": [ensemble, amount]})
    assert "- **`subtriggers`** (list of mappings, one of Amount, as `trigger`, optional): Who votes." in lines
    assert [line for line in lines if line.startswith("#")] == ["## `Ensemble`", "## `Amount`"]


def test_a_choice_that_is_new_in_part_refers_for_the_rest() -> None:
    new = _policy("Inner", num_samples={"type": "integer"})
    amount = _policy("Amount", num_samples={"type": "integer"})
    lines = _lines({"oneOf": [amount, _policy("Ensemble", subtrigger={"anyOf": [{"oneOf": [amount, new]}, {"type": "null"}]})]})
    at = lines.index("#### `Amount`")
    assert lines[at : at + 3] == ["#### `Amount`", "", "Described at `trigger`."]
    assert "#### `Inner`" in lines


def test_an_option_that_three_policies_share_is_described_once() -> None:
    size = {"type": "integer", "minimum": 2, "maximum": 9, "description": "keys that it holds"}
    policies = [_policy(name, size=size) for name in ("A", "B", "C")]
    lines = _lines({"oneOf": [*policies, _policy("D", size={**size, "maximum": 3})]})
    assert lines[:3] == [
        "## Options of several policies",
        "",
        "- **`size`** (integer from 2 to 9, optional): Keys that it holds.",
    ]
    assert lines.count("- as above: `size`") == 3
    assert "- **`size`** (integer from 2 to 3, optional): Keys that it holds." in lines


def test_another_page_is_linked() -> None:
    described = Described("evaluation")
    metrics = {"oneOf": [_policy("Accuracy")]}
    assert list(field_lists({"properties": {"metrics": metrics}}, "##", "evaluation", described))
    described.page = "trigger"
    lines = "\n".join(field_lists({"properties": {"metrics": metrics, "every": {}}}, "##", "trigger", described))
    assert "as [`evaluation.metrics`](evaluation.md)" in lines


@pytest.mark.parametrize("name", ["ThresholdDecisionCriterion", "MMDDriftMetric"])
def test_the_page_of_triggers_describes_each_policy_once(name: str) -> None:
    schema = pipeline_json_schema(plugins=False)["properties"]["trigger"]
    headings = [line.lstrip("# ") for line in _lines(schema) if line.startswith("#")]
    assert headings.count(f"`{name}`") == 1
