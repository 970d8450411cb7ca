"""Broken packages of users are listed with the reason, and do not affect users who do not name them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modyn.cli.pipelines import check_here
from modyn.config.yaml_source import load_yaml
from modyn.reference.explain import explain
from modyn.reference.schema import pipeline_json_schema
from modyn.supervisor.triggers import TRIGGERS
from modyn.testing.command_line import run_command
from modyn.testing.stack import clean_environment, tiny_pipeline
from tests.support.plugins import installed

BROKEN = {"at import": "raise RuntimeError('no')", "without Config": "class Broken: pass"}


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


def test_a_trigger_with_the_name_of_a_builtin_one_is_listed_and_not_used(tmp_path: Path) -> None:
    variables = clean_environment({"MODYN_STATE_DIR": str(tmp_path / "state")})
    with installed(tmp_path / "package", TRIGGERS, "DataAmountTrigger", "class Other: pass", "Other"):
        assert check_here(load_yaml(tiny_pipeline("numbers"), "p.yaml")) == []
        listed = json.loads(run_command(["plugins", "--json"], tmp_path, variables).stdout)
        (broken,) = [plugin for plugin in listed if plugin["problem"]]
        assert "has the name of a built-in one" in broken["problem"]
        assert sum(plugin["id"] == "DataAmountTrigger" for plugin in listed) == 2
