"""What is printed of checks is short, and says what was compared with what."""

from __future__ import annotations

import pytest

from modyn.cli.check_lines import check_line, evidence_text, verdict_text

ONE = {"mmd": 0.0123, "mmd.threshold": 0.01, "mmd.unusual": 1.0, "unusual": 1.0, "current_samples": 50.0, "mmd.seconds": 0.1}
SIX = {
    name: value
    for number in range(6)
    for name, value in {
        f"m{number}": number / 10,
        f"m{number}.threshold": 0.35,
        f"m{number}.unusual": float(number > 3),
        f"m{number}.seconds": 0.1,
    }.items()
} | {"unusual": 1.0}


def test_one_series() -> None:
    assert evidence_text(ONE) == "mmd 0.0123 > 0.0100 unusual"


def test_of_many_series_the_unusual_ones_come_first() -> None:
    assert evidence_text(SIX) == "m4 0.4000 > 0.3500 unusual, m5 0.5000 > 0.3500 unusual, m0 0.0000 < 0.3500, 3 more"
    assert evidence_text(SIX, shown=None).count(",") == 5


@pytest.mark.parametrize(
    ("evidence", "text"),
    [
        ({"mmd": 2e-5, "mmd.unusual": 0}, "mmd 2.00e-05 (no threshold yet)"),
        (
            {"mmd": 0.5, "mmd.p_value": 0.03, "mmd.p_value.threshold": 0.05, "mmd.unusual": 1},
            "mmd 0.5000 (p 0.0300 < 0.0500) unusual",
        ),
        ({"mmd": 0.5, "mmd.p_value": 0.03, "mmd.threshold": 0.5, "mmd.unusual": 0}, "mmd 0.5000 = 0.5000"),
        ({"accuracy": 0.5, "accuracy.threshold": 0.8, "accuracy.unusual": 1}, "accuracy 0.5000 < 0.8000 unusual"),
        ({"regret": 12345.6}, "regret 12,346"),
        ({"a/mmd": 0.5, "a.vote": 1, "b.vote": 0}, "a/mmd 0.5000; votes: a yes, b no"),
        ({"first_trigger": 1}, "nothing measured"),
    ],
)
def test_what_was_compared(evidence: dict[str, float], text: str) -> None:
    assert evidence_text(evidence) == text


@pytest.mark.parametrize(
    ("evidence", "fires", "text"),
    [
        (ONE, True, "fires"),
        (ONE, False, "unusual"),
        (ONE | {"cooling_down": 1}, False, "cooling down, unusual"),
        ({"first_trigger": 1.0}, True, "first trigger, fires"),
        ({"mmd": 1.0, "unusual": 0}, False, ""),
    ],
)
def test_verdicts(evidence: dict[str, float], fires: bool, text: str) -> None:
    assert verdict_text(evidence, fires=fires) == text


def test_a_line_of_a_check() -> None:
    detail = {"position": 12_000, "timestamp": 86_400, "fires": True, "seconds": 0.5, "evidence": ONE}
    line = "check after 12,000 samples (1970-01-02 00:00:00): mmd 0.0123 > 0.0100 unusual; fires, 0.50 s"
    assert check_line(detail) == line
    usual = detail | {"timestamp": None, "fires": False, "evidence": {"mmd": 1.0, "unusual": 0}}
    assert check_line(usual) == "check after 12,000 samples: mmd 1.0000, 0.50 s"
    paused = {"since_s": 4.0, "since_s.threshold": 3.0, "paused": 1.0, "unusual": 0.0}
    of_steps = usual | {"online": True, "evidence": paused}
    assert check_line(of_steps) == "check of steps after 12,000 samples: since_s 4.0000 > 3.0000; pauses for predictions, 0.50 s"
