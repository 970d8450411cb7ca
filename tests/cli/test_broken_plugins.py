"""Broken packages of users are listed with the reason, and do not affect users who do not name them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from modyn.cli.pipelines import check_here
from modyn.config.yaml_source import load_yaml
from modyn.reference.explain import explain
from modyn.reference.schema import pipeline_json_schema
from modyn.supervisor.triggers import TRIGGERS
from modyn.testing.command_line import run_command
from modyn.testing.stack import clean_environment, tiny_pipeline
from tests.support.plugins import installed

BROKEN = {
    "at import": "raise RuntimeError('no')",
    "by a panic at import": "class Panic(BaseException): pass\nraise Panic",
    "without Config": "class Broken: pass",
    "with an object as Config": "from modyn.config.base import Section\nclass Broken: Config = Section()",
}
_TRIGGER = """
from pydantic import Field
from modyn.config.base import Section
from modyn.supervisor.triggers.amount import DataAmountTrigger

class Options(Section):
    num_samples: int = 5
    {option}

class Broken(DataAmountTrigger):
    Config = Options
"""
OPTIONS = {
    "that refers to others": "half: int = Field(default_factory=lambda options: options['num_samples'] // 2)",
    "that contains its kind": "parts: list['Options'] = ()",
    "with a name that means more elsewhere": "detector: str = 'mine'",
}


@pytest.mark.parametrize("source", BROKEN.values(), ids=BROKEN)
def test_a_broken_trigger_is_listed_and_fails_what_names_it(source: str, tmp_path: Path) -> None:
    variables = clean_environment({"MODYN_STATE_DIR": str(tmp_path / "state")})
    with installed(tmp_path / "package", TRIGGERS, "Broken", source, "Broken"):
        assert "DataAmountTrigger" in explain("trigger")
        assert "Broken" not in {variant["title"] for variant in pipeline_json_schema()["properties"]["trigger"]["oneOf"]}
        assert check_here(load_yaml(tiny_pipeline("numbers"), "p.yaml")) == []
        (problem,) = check_here(load_yaml(tiny_pipeline("numbers", trigger={"id": "Broken"}), "p.yaml"))
        assert (problem.path, "plugin_broken" in problem.message) == ("trigger.id", True)
        listed = json.loads(run_command(["plugins", "--json"], tmp_path, variables).stdout)
        (broken,) = [plugin for plugin in listed if plugin["problem"]]
        assert (broken["id"], broken["distribution"]) == ("Broken", "plugin_broken")
        assert "broken: " in run_command(["plugins"], tmp_path, variables).stderr


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
def test_a_trigger_with_options_that_no_schema_describes_works_and_leaves_the_schema_to_others(
    option: str, tmp_path: Path
) -> None:
    with installed(tmp_path / "package", TRIGGERS, "Broken", _TRIGGER.format(option=option), "Broken"):
        assert "DataAmountTrigger" in explain("trigger")
        assert "Broken" in {variant["title"] for variant in pipeline_json_schema()["properties"]["trigger"]["oneOf"]}
        named = tiny_pipeline("numbers", trigger={"id": "Broken", "num_samples": 70})
        assert check_here(load_yaml(named, "p.yaml")) == []
        Draft202012Validator(pipeline_json_schema()).validate(yaml.safe_load(named))


def test_a_trigger_whose_check_fails_is_a_problem_of_the_file_that_names_it(tmp_path: Path) -> None:
    source = "from modyn.config.base import Section\nclass Broken: Config = Section"
    with installed(tmp_path / "package", TRIGGERS, "Broken", source, "Broken"):
        (problem,) = check_here(load_yaml(tiny_pipeline("numbers", trigger={"id": "Broken"}), "p.yaml"))
        assert problem.path == "trigger.id"
        assert problem.message.startswith(
            "the trigger 'Broken' of package plugin_broken is broken: its options cannot be checked: AttributeError: "
        )


def test_a_trigger_with_the_name_of_a_builtin_one_is_listed_and_not_used(tmp_path: Path) -> None:
    variables = clean_environment({"MODYN_STATE_DIR": str(tmp_path / "state")})
    with installed(tmp_path / "package", TRIGGERS, "DataAmountTrigger", "class Other: pass", "Other"):
        assert check_here(load_yaml(tiny_pipeline("numbers"), "p.yaml")) == []
        listed = json.loads(run_command(["plugins", "--json"], tmp_path, variables).stdout)
        (broken,) = [plugin for plugin in listed if plugin["problem"]]
        assert "has the name of a built-in one" in broken["problem"]
        assert sum(plugin["id"] == "DataAmountTrigger" for plugin in listed) == 2
