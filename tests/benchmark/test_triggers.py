"""The programs that measure and draw trigger policies, on few samples."""

from __future__ import annotations

import pytest

from benchmark.triggers.pictures import PICTURES, POLICIES, picture
from tests.support.measuring import measured

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("name", POLICIES)
def test_the_pictures_of_the_page_are_up_to_date(name: str) -> None:
    assert (PICTURES / f"{name}.svg").read_text() == picture(name), "run: python -m benchmark.triggers pictures"


@pytest.mark.slow
def test_a_run_of_checks_is_measured() -> None:
    lines = measured("benchmark.triggers", "checks", "--checks", "30").splitlines()
    assert float(lines[-1].removeprefix("checks: ")) > 0


@pytest.mark.exhaustive
def test_policies_are_compared_on_a_stream() -> None:
    table = measured("benchmark.evidence", "triggers", "--stream", "digits", "--seeds", "1", "--policy", "MMD > 0.05")
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows] == ["| policy", "| every 0.5 y", "| MMD > 0.05"]
    assert rows[1][1].startswith("71.0")
