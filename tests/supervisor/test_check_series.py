"""What the evidence of a check means follows from its names."""

from __future__ import annotations

import pytest

from modyn.supervisor.check_series import SeriesCheck, explain_check, is_count, is_flag, is_value, is_warming_up

EVIDENCE = {
    "reference_samples": 50.0,
    "mmd": 0.2,
    "mmd.seconds": 0.1,
    "mmd.p_value": 0.03,
    "mmd.p_value.threshold": 0.05,
    "mmd.unusual": 1.0,
    "ks": 0.1,
    "ks.unusual": 0.0,
    "unusual": 1.0,
    "cooling_down": 1.0,
    "unusual_in_a_row": 2.0,
}


def test_values_stand_with_what_they_were_compared_with() -> None:
    found = explain_check(EVIDENCE)
    assert found.series == (
        SeriesCheck("ks", 0.1, unusual=False, series="ks"),
        SeriesCheck("mmd", 0.2, unusual=True, p_value=0.03, level=0.05, series="mmd"),
    )
    assert found.notes == ("cooling down", "2 unusual in a row")
    assert found.unusual
    assert not found.votes


def test_two_criteria_of_one_series_are_two_series() -> None:
    evidence = {"accuracy": 0.8, "accuracy-static.threshold": 0.7, "accuracy-static.unusual": 0, "accuracy-dynamic.unusual": 0}
    assert explain_check(evidence).series == (
        SeriesCheck("accuracy-dynamic", 0.8, None, False, series="accuracy"),
        SeriesCheck("accuracy-static", 0.8, 0.7, False, series="accuracy"),
    )


def test_a_judgement_of_no_value_is_kept() -> None:
    found = explain_check({"a/x": 1.0, "b/x.threshold": 2.0}).series
    assert found == (SeriesCheck("b/x", None, 2.0), SeriesCheck("a/x", 1.0, series="a/x"))


def test_what_was_judged_comes_first_and_details_of_it_are_left_out() -> None:
    evidence = {"accuracy": 0.8, "calibration.accuracy": 0.9, "missed": 3.0, "missed.so_far": 2.0, "missed.threshold": 9.0}
    assert [one.name for one in explain_check(evidence).series] == ["missed", "accuracy"]
    assert [one.name for one in explain_check({"my.distance": 0.5}).series] == ["my.distance"]


def test_votes_and_notes_of_subtriggers_bear_their_names() -> None:
    evidence = {"drift/mmd": 0.2, "drift/warming_up": 1, "drift/unusual": 1, "drift.vote": 0, "cost.vote": 1}
    found = explain_check(evidence)
    assert found.series == (SeriesCheck("drift/mmd", 0.2, series="drift/mmd"),)
    assert found.votes == {"cost": True, "drift": False}
    assert found.notes == ("drift warming up",)
    assert found.unusual is None
    assert is_warming_up(evidence)
    assert not is_warming_up(EVIDENCE)


def test_evidence_of_a_plugin_is_values() -> None:
    assert [one.name for one in explain_check({"distance": 0.2, "threshold": 0.1}).series] == ["distance", "threshold"]
    assert explain_check({}).series == ()


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("mmd", (True, False, False)),
        ("drift/unusual", (False, True, False)),
        ("mmd.unusual", (False, True, False)),
        ("drift.vote", (False, True, False)),
        ("unusual_in_a_row", (False, False, True)),
        ("drift/current_samples", (False, False, True)),
        ("mmd.seconds", (False, False, False)),
        ("mmd.p_value.threshold", (False, False, False)),
    ],
)
def test_kinds_of_evidence(name: str, kinds: tuple[bool, bool, bool]) -> None:
    assert (is_value(name), is_flag(name), is_count(name)) == kinds
