"""The examples in docstrings give what they say."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OF_EXTRAS = {"modyn.evaluator.drift.alibi", "modyn.evaluator.drift.evidently"}
"""Modules whose examples run in `make test-extras`, because their libraries need environments of their own."""
WITH_EXAMPLES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((ROOT / "modyn").rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("module", [module for module in WITH_EXAMPLES if module not in OF_EXTRAS])
def test_examples_of_docstrings(module: str) -> None:
    assert doctest.testmod(import_module(module)).failed == 0
