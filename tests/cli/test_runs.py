"""What `modyn show` prints of a run with very many triggers: the newest of everything, and how many there are."""

from __future__ import annotations

import pytest

from benchmark.report_of_many import invented_results
from modyn.cli.runs import _print_results


def test_the_newest_triggers_of_many_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    _print_results(invented_results(models=300, intervals=2))
    text = capsys.readouterr().out
    assert "Triggers (the newest 50 of 300; --json has all)" in text
    assert text.count("trigger 299") == 1, "in the matrix"
    assert "trigger 249" not in text
    assert "300 triggers" in text


def test_few_triggers_are_all_shown(capsys: pytest.CaptureFixture[str]) -> None:
    _print_results(invented_results(models=3, intervals=3))
    text = capsys.readouterr().out
    assert all(f"trigger {number}" in text for number in range(3))
    assert "newest" not in text
    assert text.count("*") == 1 + 2, "in the title, and in two intervals"
