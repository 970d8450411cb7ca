"""Output of `modyn show` for a run with many triggers: the newest items and their numbers; and the output without pandas."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from benchmark.report_of_many import invented_results
from modyn.cli.main import app
from modyn.cli.runs import _check_report
from modyn.cli.views.run_tables import print_checks, print_results, print_runs, show_results
from modyn.client import Client
from modyn.config.system import SystemConfig
from modyn.errors import UnavailableError
from modyn.records import RunId
from modyn.supervisor.client import CheckRecord, Evidence, Run, RunMode, RunState


def test_the_newest_triggers_of_many_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    print_results(invented_results(models=300, intervals=2))
    text = capsys.readouterr().out
    assert "Triggers (the newest 50 of 300; --json has all)" in text
    assert text.count("trigger 299") == 1, "in the matrix"
    assert "trigger 249" not in text
    assert "300 triggers" in text


def test_bad_samples_that_trainings_left_out_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    results = invented_results(models=3, intervals=3)
    bad = {"key": 7, "place": "in a/7.png at 0", "reason": "ValueError: broken"}
    results.triggers["bad_samples"] = pd.Series([[], [bad], []], dtype=object)
    print_results(results)
    assert "1\t7\tin a/7.png at 0\tValueError: broken" in capsys.readouterr().out


def test_what_came_from_the_cache_is_shown_where_any_did(capsys: pytest.CaptureFixture[str]) -> None:
    results = invented_results(models=3, intervals=3)
    results.triggers["cached_decoded"] = pd.array([None, 40, 60], "Int64")
    print_results(results)
    table = capsys.readouterr().out.partition("# Triggers")[2].splitlines()
    assert [line.split("\t")[-1] for line in table[1:5]] == ["cached_decoded", "–", "40", "60"]


def test_scores_from_before_a_deletion_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    results = invented_results(models=3, intervals=3)
    results.evaluations["num_deleted"] = pd.array([0, *[20] * (len(results.evaluations) - 1)], "Int64")
    print_results(results)
    assert "\nnote: 20 samples of dataset " in capsys.readouterr().out.partition("# Pipeline scores")[2]


def test_few_triggers_are_all_shown(capsys: pytest.CaptureFixture[str]) -> None:
    print_results(invented_results(models=3, intervals=3))
    text = capsys.readouterr().out
    assert all(f"trigger {number}" in text for number in range(3))
    assert "newest" not in text
    assert text.count("*") == 1 + 2, "in the title, and in two intervals"


def test_a_terminal_shows_the_newest_intervals_that_fit_with_their_models(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    print_results(invented_results(models=20, intervals=1))
    matrix = capsys.readouterr().out.partition("Accuracy on")[2].partition("Pipeline scores")[0]
    assert "the newest 7 of 20 intervals" in " ".join(matrix.split())
    assert [line.split()[:2] for line in matrix.splitlines() if "trigger" in line] == [["trigger", str(n)] for n in range(13, 20)]
    assert matrix.count("*") == 1 + 7, "in the title, and in all intervals"
    assert "…" not in matrix


def test_what_is_not_scored_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    print_results(invented_results(models=3, intervals=1))
    assert "trigger 0\t0.143*\t–\t–" in capsys.readouterr().out


def test_triggers_of_steps_are_told_from_trainings(capsys: pytest.CaptureFixture[str]) -> None:
    results = invented_results(models=3, intervals=3)
    results.triggers["online"] = [False, True, True]
    print_results(results)
    table = capsys.readouterr().out.partition("# Triggers")[2].splitlines()
    assert [line.split("\t")[1] for line in table[1:5]] == ["kind", "training", "steps", "steps"]


def test_without_pandas_a_run_ends_well_and_a_report_is_refused_before_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.startswith("modyn.analysis")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pandas", None)  # as where it is not installed
    with Client(SystemConfig(state_dir=tmp_path)) as client:
        show_results(client, "run-0001")
    assert "pip install 'modyn[analysis]'" in capsys.readouterr().err
    with pytest.raises(UnavailableError, match=r"modyn\[analysis\]"):
        _check_report(tmp_path / "report.html")


def test_evaluations_that_are_missing_have_a_column(capsys: pytest.CaptureFixture[str]) -> None:
    whole = Run(RunId("a-0001"), "a", RunMode.EXPERIMENT, RunState.FINISHED, submitted_at=0.0, finished_at=1.0)
    print_runs([whole, replace(whole, run_id=RunId("a-0002"), failed_evaluations=3)])
    head, *rows = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert [row[head.index("missing evaluations")] for row in rows] == ["", "3"]
    assert [row[0] for row in rows] == ["a-0001", "a-0002"]


def test_checks_are_shown_with_their_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    evidence = [Evidence("mmd", 0.25, threshold=0.2, unusual=True), Evidence.flag("unusual")]
    many = [Evidence(f"m{number}", 0.5) for number in range(6)]
    print_checks(
        [
            CheckRecord(500, True, evidence, 0.5, timestamp=86_400),
            CheckRecord(600, False, many),
        ]
    )
    assert capsys.readouterr().out.splitlines() == [
        "after samples\ttime\tevidence\tverdict\tseconds",
        "500\t1970-01-02 00:00:00\tmmd 0.2500 > 0.2000 unusual\tfires\t0.5000",
        "600\t–\tm0 0.5000, m1 0.5000, m2 0.5000, m3 0.5000, m4 0.5000, m5 0.5000\t\t0.0000",
    ]


def test_checks_of_two_policies_name_them(capsys: pytest.CaptureFixture[str]) -> None:
    print_checks(
        [
            CheckRecord(500, False, [Evidence("mmd", 0.25)]),
            CheckRecord(500, True, [Evidence("loss", 0.5)], online=True),
        ]
    )
    assert capsys.readouterr().out.splitlines() == [
        "after samples\tpolicy\ttime\tevidence\tverdict\tseconds",
        "500\ttrigger\t–\tmmd 0.2500\t\t0.0000",
        "500\tonline.trigger\t–\tloss 0.5000\tfires\t0.0000",
    ]


def test_a_number_of_checks_needs_the_option_for_checks() -> None:
    result = CliRunner().invoke(app, ["show", "digits-0001", "--last", "3"])
    assert result.exit_code == 2
    assert "it needs --checks" in result.output
