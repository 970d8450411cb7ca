"""Lines about checks are short and contain the compared values."""

from __future__ import annotations

import pytest

from modyn.cli.views.check_lines import check_line, evidence_text, verdict_text
from modyn.supervisor.client import CheckRecord, Evidence, EvidenceKind

FLAG = Evidence.flag("unusual")
ONE = [Evidence("mmd", 0.0123, threshold=0.01, unusual=True, seconds=0.1), FLAG, Evidence.count("current_samples", 50)]
SIX = [*(Evidence(f"m{n}", n / 10, threshold=0.35, unusual=n > 3, seconds=0.1) for n in range(6)), FLAG]


VOTES = [Evidence("a", 1.0, kind=EvidenceKind.VOTE), Evidence("b", 0.0, kind=EvidenceKind.VOTE)]


def test_one_series() -> None:
    assert evidence_text(ONE) == "mmd 0.0123 > 0.0100 unusual"


def test_of_many_series_the_unusual_ones_come_first() -> None:
    assert evidence_text(SIX) == "m4 0.4000 > 0.3500 unusual, m5 0.5000 > 0.3500 unusual, m0 0.0000 < 0.3500, 3 more"
    assert evidence_text(SIX, shown=None).count(",") == 5


@pytest.mark.parametrize(
    ("evidence", "text"),
    [
        ([Evidence("mmd", 2e-5, unusual=False)], "mmd 2.00e-05 (no threshold yet)"),
        (
            [Evidence("mmd", 0.5, p_value=0.03, level=0.05, unusual=True)],
            "mmd 0.5000 (p 0.0300 < 0.0500) unusual",
        ),
        ([Evidence("mmd", 0.5, p_value=0.03, threshold=0.5, unusual=False)], "mmd 0.5000 = 0.5000"),
        ([Evidence("accuracy", 0.5, threshold=0.8, unusual=True)], "accuracy 0.5000 < 0.8000 unusual"),
        ([Evidence("regret", 12345.6)], "regret 12,346"),
        (
            [Evidence("mmd", 0.5, subtrigger="a"), *VOTES],
            "a/mmd 0.5000; votes: a yes, b no",
        ),
        ([Evidence.flag("first_trigger")], "nothing measured"),
    ],
)
def test_what_was_compared(evidence: list[Evidence], text: str) -> None:
    assert evidence_text(evidence) == text


@pytest.mark.parametrize(
    ("evidence", "fires", "text"),
    [
        (ONE, True, "fires"),
        (ONE, False, "unusual"),
        ([*ONE, Evidence.flag("cooling_down")], False, "cooling down, unusual"),
        ([Evidence.flag("first_trigger")], True, "first trigger, fires"),
        ([Evidence("mmd", 1.0), Evidence.flag("unusual", is_set=False)], False, ""),
    ],
)
def test_verdicts(evidence: list[Evidence], fires: bool, text: str) -> None:
    assert verdict_text(evidence, fires=fires) == text


def test_a_line_of_a_check() -> None:
    check = CheckRecord(12_000, True, ONE, seconds=0.5, timestamp=86_400)
    line = "check after 12,000 samples (1970-01-02 00:00:00): mmd 0.0123 > 0.0100 unusual; fires, 0.50 s"
    assert check_line(check) == line
    usual = CheckRecord(12_000, False, [Evidence("mmd", 1.0)], seconds=0.5)
    assert check_line(usual) == "check after 12,000 samples: mmd 1.0000, 0.50 s"
    paused = [Evidence("since_s", 4.0, threshold=3.0), Evidence.flag("paused"), Evidence.flag("unusual", is_set=False)]
    of_steps = CheckRecord(12_000, False, paused, seconds=0.5, online=True)
    assert check_line(of_steps) == "check of steps after 12,000 samples: since_s 4.0000 > 3.0000; pauses for predictions, 0.50 s"
