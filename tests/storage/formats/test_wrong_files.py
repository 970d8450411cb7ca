"""Files that are wrong in one place: each row is a sample with what it means, or is listed as a problem with file and place. None vanishes, and none
is read as something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.wrong_files import DEFECTS, why_wrong

GATE_FILES, ALL_FILES = 4, -(-10_000 // len(DEFECTS))
"""Of each defect."""
_QUOTES, _FIELDS = "text behind a quote and quotes that are lost", "rows with more or fewer fields than the others"
_ENDS, _JSON = "line ends, encodings and last lines", "lines that Arrow reads and Python does not"
PENDING: dict[tuple[str, str], str] = {
    **dict.fromkeys([("csv", "lost_quote"), ("csv", "text_after_quote")], _QUOTES),
    **dict.fromkeys([("csv", "missing_field"), ("csv", "extra_field")], _FIELDS),
    **dict.fromkeys([("csv", "carriage_returns"), ("csv", "cut"), ("json", "byte_order_mark")], _ENDS),
    **dict.fromkeys([("json", "invalid_utf8"), ("json", "duplicate_key"), ("json", "not_a_number")], _JSON),
}
"""Defects that are not found yet, and why."""


def cases() -> list[object]:
    return [
        pytest.param(
            *case, marks=[pytest.mark.xfail(reason=PENDING[case], strict=False)] if case in PENDING else [], id="-".join(case)
        )
        for case in DEFECTS
    ]


@pytest.mark.parametrize(("kind", "defect"), cases())
def test_each_row_is_right_or_a_problem(tmp_path: Path, kind: str, defect: str) -> None:
    assert [found for seed in range(GATE_FILES) if (found := why_wrong(tmp_path, kind, defect, seed))] == []


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "defect"), cases())
def test_each_row_of_10000_files_is_right_or_a_problem(tmp_path: Path, kind: str, defect: str) -> None:
    assert [(seed, found) for seed in range(ALL_FILES) if (found := why_wrong(tmp_path, kind, defect, seed))][:3] == []
