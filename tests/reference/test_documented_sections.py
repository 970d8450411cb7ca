"""Sections of a pipeline in the pages on selections and triggers are valid."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from modyn.config.base import Problem, check_section
from modyn.dataset.config import DataConfig
from modyn.selector.selection import validate_selection
from modyn.supervisor.triggers import check_trigger_section
from modyn.trainer_server.downsampling.policies import check_downsampling

DOCS = Path(__file__).parents[2] / "docs/how-to"
PAGES = ("selection.md", "triggers.md", "late-labels.md", "seasons.md", "rare-classes.md")


def sections_of(page: str) -> Iterator[Any]:
    """Yield the YAML blocks of a page. The anchor of an alias is elsewhere in a user's file."""
    for number, text in enumerate(re.findall(r"```yaml\n(.*?)```", (DOCS / page).read_text(), re.DOTALL), start=1):
        yield pytest.param(yaml.safe_load(re.sub(r"\*(\w+)", r"\1", dedent(text))), id=f"{page}-{number}")


def problems_of(block: dict[str, Any]) -> list[Problem]:
    if "data" in block:
        return check_section(DataConfig, {"record_layout": {"dtype": "int8"}, **block["data"]}, "data")
    if "trigger" in block:
        return check_trigger_section(block["trigger"])
    section = block.get("selection_strategy", {"name": "CoresetStrategy", "maximum_keys_in_memory": 1000, **block})
    return [*validate_selection(section), *check_downsampling(section)]


@pytest.mark.parametrize("block", [block for page in PAGES for block in sections_of(page)])
def test_a_section_that_a_page_shows_has_no_mistake(block: dict[str, Any]) -> None:
    assert problems_of(block) == []
