"""The file of named policies: grids, names, and mistakes with their line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from modyn.config.yaml_source import load_yaml
from modyn.errors import ConfigError, InvalidArgumentError
from modyn.evaluator.trigger_section import check_trigger
from modyn.supervisor.simulation.policy_file import MAX_POLICIES, PolicyFile, expand, load_policies, parse_policies

ROOT = Path(__file__).parents[3]


def parsed(text: str) -> PolicyFile:
    return parse_policies(load_yaml(text, "p.yaml"))


CRITERION = {"id": "ThresholdDecisionCriterion", "threshold": 0.5}
DRIFT: dict[str, Any] = {
    "id": "DataDriftTrigger",
    "evaluation_interval_data_points": 10,
    "metrics": {"mmd": {"id": "MMDDriftMetric", "decision_criterion": CRITERION}},
}


def names(section: dict[str, Any]) -> list[str]:
    found, problems = expand("p", section)
    assert problems == []
    return list(found)


def test_a_section_without_grids_is_one_policy() -> None:
    assert expand("p", DRIFT) == ({"p": DRIFT}, [])


def test_a_list_where_the_option_takes_one_value_is_a_grid_and_several_are_combined() -> None:
    section = {"id": "TimeTrigger", "every": ["1d", "2d"], "start_timestamp": [0, None]}
    found, problems = expand("p", section)
    assert problems == []
    assert found == {
        f"p[every={every}, start_timestamp={'null' if start is None else start}]": {
            "id": "TimeTrigger",
            "every": every,
            "start_timestamp": start,
        }
        for every in ("1d", "2d")
        for start in (0, None)
    }


def test_grids_lie_anywhere_and_need_their_word_where_the_option_is_checked_elsewhere() -> None:
    metric = {
        "id": "MMDDriftMetric",
        "num_permutations": {"grid": [None, 100]},
        "decision_criterion": {**CRITERION, "threshold": [0.1, 0.2]},
    }
    windows = {"id": "AmountWindowingStrategy", "amount_cur": [10, 20]}
    assert names({**DRIFT, "windowing_strategy": windows, "metrics": {"mmd": metric}})[:3] == [
        "p[num_permutations=null, threshold=0.1, amount_cur=10]",
        "p[num_permutations=null, threshold=0.1, amount_cur=20]",
        "p[num_permutations=null, threshold=0.2, amount_cur=10]",
    ]


def test_the_example_of_the_page_has_no_mistake_that_the_evaluator_finds_later() -> None:
    (text,) = (
        block for block in (ROOT / "docs/how-to/simulate.md").read_text().split("```yaml\n")[1:] if block.startswith("policies:")
    )
    sections = parsed(text.split("```")[0]).sections
    assert len(sections) == 1 + 3 + 2 * 3
    assert [problem for section in sections.values() for problem in check_trigger({"trigger": section})] == []


def test_an_option_without_effect_is_not_a_mistake() -> None:
    criterion = {"id": "StaticPerformanceThresholdCriterion", "metric": "Accuracy", "metric_threshold": 0.8}
    section = {
        "id": "PerformanceTrigger",
        "evaluation_interval_data_points": [10, 20],
        "evaluation": {"dataset": {}},
        "decision_criteria": {"a": criterion},
        "data_density_window_size": 5,
    }
    found, problems = expand("a", section)
    assert (len(found), problems) == (2, [])


def test_a_grid_of_sections_and_of_ids() -> None:
    criteria = [CRITERION, {"id": "DynamicQuantileThresholdCriterion"}]
    metric = {"id": "MMDDriftMetric", "decision_criterion": {"grid": criteria}}
    assert names({**DRIFT, "metrics": {"mmd": metric}}) == [
        "p[decision_criterion=ThresholdDecisionCriterion]",
        "p[decision_criterion=DynamicQuantileThresholdCriterion]",
    ]
    # What the options are is known once the policy is: the grid of its name is found first.
    assert names(
        {"id": ["DataDriftTrigger", "AutoDrift"], "evaluation_interval_data_points": [5, 6], "metrics": DRIFT["metrics"]}
    ) == [
        "p[id=DataDriftTrigger, evaluation_interval_data_points=5]",
        "p[id=DataDriftTrigger, evaluation_interval_data_points=6]",
        "p[id=AutoDrift, evaluation_interval_data_points=5]",
        "p[id=AutoDrift, evaluation_interval_data_points=6]",
    ]


def test_options_of_one_name_are_told_apart_by_where_they_stand() -> None:
    metrics = {name: {"id": "MMDDriftMetric", "decision_criterion": {**CRITERION, "threshold": [0.1]}} for name in ("a", "b")}
    assert names({**DRIFT, "metrics": metrics}) == ["p[a.decision_criterion.threshold=0.1, b.decision_criterion.threshold=0.1]"]


def test_expanding_changes_nothing_and_shares_nothing() -> None:
    section = {
        **DRIFT,
        "metrics": {"mmd": {"id": "MMDDriftMetric", "decision_criterion": {**CRITERION, "threshold": [0.1, 0.2]}}},
    }
    before = repr(section)
    found, _ = expand("p", section)
    first, second = found.values()
    first["metrics"]["mmd"]["id"] = "changed"
    assert second["metrics"]["mmd"]["id"] == "MMDDriftMetric"
    assert repr(section) == before


MISTAKES = """
policies:
  a: {id: DataAmountTrigger, num_sample: [5, 10]}
  b:
    id: DataAmountTrigger
    num_samples: [5, 0]
  c: {id: DataAmountTriger, num_samples: 5}
  d: {id: DataAmountTrigger, num_samples: []}
  e: 7
"""


def test_mistakes_are_listed_with_line_path_and_nearest_name() -> None:
    with pytest.raises(ConfigError) as raised:
        parsed(MISTAKES)
    lines = raised.value.message.splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        ["p.yaml:3", "policies.a.num_samples"],
        ["p.yaml:3", "policies.a.num_sample"],
        ["p.yaml:6", "policies.b.num_samples"],
        ["p.yaml:7", "policies.c.id"],
        ["p.yaml:8", "policies.d.num_samples"],
        ["p.yaml:9", "policies.e"],
    ]
    assert "did you mean 'num_samples'?" in lines[1]
    assert "0 is wrong" in lines[2]
    assert "did you mean 'DataAmountTrigger'?" in lines[3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("policy: {}", "policies: is required"),
        ("policies: {}", "policies: is required"),
        ("policies: {a: {id: DataAmountTrigger, num_samples: 5}}\nextra: 1", "p.yaml:2: extra: there is no such key"),
        ("policies: {a: {id: DataAmountTrigger, num_samples: 5}}\ndata: 1", "p.yaml:2: data: is not a section"),
        (
            "policies: {a: {id: DataAmountTrigger, num_samples: 5}}\ndata: {}",
            "p.yaml:2: data: exactly one of decode, bytes_parser_function",
        ),
        (
            "policies: {a: {id: DataAmountTrigger, num_samples: 5}}\ndata:\n  record_layout: {dtyp: int8}",
            "p.yaml:3: data.record_layout.dtyp: there is no such key, did you mean 'dtype'?",
        ),
        (
            "policies:\n  a[num_samples=5]: {id: DataAmountTrigger, num_samples: 5}\n"
            "  a: {id: DataAmountTrigger, num_samples: [5]}",
            "p.yaml:3: policies.a: gives the name 'a[num_samples=5]' a second time",
        ),
    ],
)
def test_a_file_that_is_none_of_policies(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        parsed(text)


def test_more_policies_than_are_meant() -> None:
    section = {"id": "TimeTrigger", "every": list(range(1, 102)), "start_timestamp": list(range(100))}
    assert MAX_POLICIES < 101 * 100
    found, (problem,) = expand("p", section)
    assert found == {}
    assert "10,100 policies" in problem.message


def test_a_policy_file_says_next_to_its_policies_how_samples_are_decoded() -> None:
    policies = "policies: {a: {id: DataAmountTrigger, num_samples: 5}}\n"
    text = policies + "data: {record_layout: {dtype: uint8, shape: [4]}}\n"
    assert list(parsed(text).sections) == ["a"]
    assert parsed(text).data == {"record_layout": {"dtype": "uint8", "shape": [4]}}
    assert parsed(policies).data is None


def test_sections_of_a_program_are_those_of_its_file() -> None:
    sections: dict[str, dict[str, Any]] = {
        "a": {"id": "DataAmountTrigger", "num_samples": (5, 6)},
        "b": {"id": "TimeTrigger", "every": "1d"},
    }
    loaded = load_policies(sections)
    assert (
        loaded.sections
        == parsed(yaml.safe_dump({"policies": {**sections, "a": {**sections["a"], "num_samples": [5, 6]}}})).sections
    )
    assert loaded.paths == {"a[num_samples=5]": "policies.a", "a[num_samples=6]": "policies.a", "b": "policies.b"}
    assert load_policies(loaded) is loaded
    with pytest.raises(ConfigError, match=r"policies.a.num_samples: nan is not a finite number"):
        load_policies({"a": {"id": "DataAmountTrigger", "num_samples": math.nan}})
    with pytest.raises(ConfigError, match=r"policies.a: the key 5 is not text"):
        load_policies({"a": {5: "DataAmountTrigger"}})
    with pytest.raises(InvalidArgumentError, match=r"policies.a is a object"):
        load_policies({"a": object()})
