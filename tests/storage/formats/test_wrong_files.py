"""Files that are wrong in one place: each row is a sample with what it means, or is listed as a problem with file and place. None vanishes, and none
is read as something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.wrong_files import DEFECTS, why_wrong


@pytest.mark.parametrize("num_files", [4, pytest.param(-(-10_000 // len(DEFECTS)), marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kind", "defect"), [pytest.param(*case, id="-".join(case)) for case in DEFECTS])
def test_each_row_is_right_or_a_problem(tmp_path: Path, kind: str, defect: str, num_files: int) -> None:
    """num_files: of each defect; 10,000 files in all where slow tests run."""
    assert [(seed, found) for seed in range(num_files) if (found := why_wrong(tmp_path, kind, defect, seed))][:3] == []
