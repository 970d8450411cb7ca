"""Files that are wrong in one place: each row is a sample with what it means, or is listed as a problem with file and place. None vanishes, and none
is read as something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.wrong_files import DEFECTS, why_wrong

GATE_FILES, ALL_FILES = 4, -(-10_000 // len(DEFECTS))
"""Of each defect."""
CASES = [pytest.param(*case, id="-".join(case)) for case in DEFECTS]


@pytest.mark.parametrize(("kind", "defect"), CASES)
def test_each_row_is_right_or_a_problem(tmp_path: Path, kind: str, defect: str) -> None:
    assert [found for seed in range(GATE_FILES) if (found := why_wrong(tmp_path, kind, defect, seed))] == []


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "defect"), CASES)
def test_each_row_of_10000_files_is_right_or_a_problem(tmp_path: Path, kind: str, defect: str) -> None:
    assert [(seed, found) for seed in range(ALL_FILES) if (found := why_wrong(tmp_path, kind, defect, seed))][:3] == []
