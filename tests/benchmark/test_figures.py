"""`make figures` measures the figures that `benchmark/README.md` quotes, and names each figure that has become worse."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmark import figures
from benchmark.figures import FIGURES, check, reported, worse

ROOT = Path(__file__).parents[2]
OUTPUT = """\
b[short cut on, parser=batch]: 1.50 (target 0.5)
b[short cut off, parser=batch]: 0.80 (target 0.25)
b[somewhat new, 5,000 samples]: 3.00
b[alone]: 5.3e+06 (4.9e+06-5.6e+06) samples/s
b: 0.80
"""


def test_every_figure_of_the_readme_is_measured_and_has_a_report() -> None:
    readme = (ROOT / "benchmark/README.md").read_text()
    quoted = re.findall(r"`python -m benchmark\.(\w+)(?: (\w))?`(?:, `(\w)`)?", readme)
    names = {name for module, *letters in quoted for name in (filter(None, letters) if module == "data_path" else [module])}
    for program in ("selection", "cache", "online"):
        rows = [line for line in readme.splitlines() if line.startswith("| ") and f"`python -m benchmark.{program} " in line]
        names |= {name for row in rows for name in re.findall(rf"`(?:python -m benchmark\.{program} )?(\w+)`", row.split("|")[3])}
    assert names == set(FIGURES)
    for name, figure in FIGURES.items():
        source, values = reported(name, figure)
        assert values, f"{name}: no values in {source}"


def test_what_is_worse_in_two_runs_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    runs = 0

    def run(*_: Any, **__: Any) -> Any:
        nonlocal runs
        runs += 1
        return SimpleNamespace(returncode=0, stdout=OUTPUT.replace("1.50", "2.00") if runs == 2 else OUTPUT, stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    before = {"short cut on, parser=batch": 1.9, "short cut off, parser=batch": 1.01, "gone": 1.0}
    values, lines = check("b", FIGURES["b"], "a report", before)
    assert runs == 2
    assert values == {"short cut on, parser=batch": 2.0, "short cut off, parser=batch": 0.8, "somewhat new": 3.0}
    assert lines == ["b: short cut off, parser=batch: 0.8, was 1.01 (a report)"]
    assert "b: 3 cases, 2 of them in a report" in capsys.readouterr().out


def test_of_seconds_less_is_better() -> None:
    assert worse(FIGURES["start_up"], {"s": 2.9}, {"s": 2.5}) == []
    assert worse(FIGURES["start_up"], {"s": 3.1}, {"s": 2.5}) == ["s: 3.1, was 2.5"]
    assert worse(FIGURES["b"], {"x": 0.81}, {"x": 1.0}) == []


def test_its_own_report_goes_before_that_of_the_figure(tmp_path: Path) -> None:
    figure = FIGURES["a"]
    row = "| {} | warm | 1 | 2 | **{}** (1–2) | 1 |\n"
    (tmp_path / "2026-01-01-data-path-a.md").write_text(row.format("x, 5,000 samples", 2) + row.format("y", 3))
    (tmp_path / "2026-01-01-data-path-a-only-y.md").write_text(row.format("y", 4))
    (tmp_path / "2026-01-01-data-path-ab.md").write_text(row.format("y", 9))
    assert reported("a", figure, tmp_path) == (
        "2026-01-01-data-path-a.md, 2026-01-01-data-path-a-only-y.md",
        {"x": 2.0, "y": 4.0},
    )
    (tmp_path / "2025-12-31-figures.md").write_text(figures.table({"a": {"x": 1.0, "y": 1.5}}))
    assert reported("a", figure, tmp_path) == ("2025-12-31-figures.md", {"x": 1.0, "y": 1.5})
    assert reported("start_up", FIGURES["start_up"], tmp_path) == ("no report", {})
