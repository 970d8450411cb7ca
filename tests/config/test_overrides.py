"""Values of a pipeline file may be set for one run."""

from __future__ import annotations

import pytest

from modyn.config.overrides import override
from modyn.config.yaml_source import load_yaml
from modyn.errors import ConfigError, InvalidArgumentError

TEXT = """\
pipeline: {name: p}  # the name
training:
  batch_size: 4
  optimizers:
    - {name: a, config: {lr: 0.1}}
"""


def test_values_are_set_and_comments_kept() -> None:
    settings = [
        "training.batch_size=64",
        "training.optimizers.0.config.lr=1e-3",
        "evaluation.device=cpu",
        "training.seed=",
        "training.x=[1, a]",
    ]
    found = override(TEXT, "p.yaml", settings)
    assert "# the name" in found
    assert load_yaml(found, "p.yaml").data == {
        "pipeline": {"name": "p"},
        "training": {"batch_size": 64, "optimizers": [{"name": "a", "config": {"lr": 0.001}}], "seed": None, "x": [1, "a"]},
        "evaluation": {"device": "cpu"},
    }
    assert override(TEXT, "p.yaml", []) == TEXT


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.batch_size", "is not a setting; write PATH=VALUE"),
        ("training..a=1", "is not a setting"),
        ("training.optimizers.1.name=b", "'1' is not the number of an item: items are counted from 0, and the list has 1"),
        ("training.batch_size.x=1", "goes through a value that has no fields"),
    ],
)
def test_a_text_that_is_not_a_setting_is_refused(setting: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        override(TEXT, "p.yaml", [setting])


def test_a_value_or_file_that_is_not_yaml_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--set training.a=\[1"):
        override(TEXT, "p.yaml", ["training.a=[1"])
    with pytest.raises(ConfigError, match=r"p.yaml:1"):
        override("a: [", "p.yaml", ["training.a=1"])


def test_a_path_leads_through_a_name_with_a_dot() -> None:
    text = "trigger:\n  decision_criteria:\n    static-0.8: {metric_threshold: 0.8}\n"
    found = override(text, "p.yaml", ["trigger.decision_criteria.static-0.8.metric_threshold=0.7"])
    assert load_yaml(found, "p.yaml").data == {"trigger": {"decision_criteria": {"static-0.8": {"metric_threshold": 0.7}}}}
