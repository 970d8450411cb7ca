"""The programs that measure data selection, on few samples."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmark.selection.sides import PEERS
from tests.support.measuring import measured

# Services and trainings as other programs start them: on a machine that is busy otherwise that takes minutes.
pytestmark = pytest.mark.timeout(600)


def run(*arguments: str) -> str:
    """The output of a figure."""
    return measured("benchmark.selection", *arguments)


@pytest.mark.slow
def test_presampling_is_measured() -> None:
    output = run("presample", "--samples", "200000", "--classes", "50", "--pairs", "1")
    value = float(output.splitlines()[-1].removeprefix("presample: "))
    assert value > 0
    assert f"- ratio, NumPy with the keys to the selector, median of pairs: {value:.2f}; this is the goal, at least 0.3" in output
    assert "- to `bincount`, quotas and `choice` alone: " in output


@pytest.mark.parametrize(
    ("figure", "samples", "rows"),
    [
        pytest.param("score", 1200, ["Loss", "GradNorm", "Uncertainty"], marks=pytest.mark.slow),
        pytest.param("bts", 128, ["Loss", "GradNorm", "Uncertainty"], marks=pytest.mark.exhaustive),
        pytest.param(
            "rs2",
            600,
            ["presampling Random, 50 %", "RS2 without replacement", "RS2 with replacement"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_trainings_are_measured(figure: str, samples: int, rows: list[str]) -> None:
    lines = run(figure, "--samples", str(samples), "--rounds", "1").splitlines()
    assert float(lines[-1].removeprefix(f"{figure}: ")) > 0
    assert [line.split("|")[1].strip() for line in lines if line.startswith("| ")][1:] == rows


@pytest.mark.exhaustive
def test_policies_are_compared_on_a_stream(tmp_path: Path) -> None:
    """The stored results allow a second comparison without running the policies again."""
    command = [
        "benchmark.evidence",
        "selection",
        "--stream",
        "noisy",
        "--seeds",
        "1",
        "--kept",
        str(tmp_path),
    ]

    def table(*policies: str) -> list[str]:
        arguments = [argument for policy in policies for argument in ("--policy", policy)]
        return measured(*command, *arguments).splitlines()

    first, second = table("Random"), table("Random")
    found = [line for line in first if line.startswith("| ")]
    assert [line.split("|")[1:3] for line in found[1:]] == [
        [" full data ", " 100 % "],
        *([" Random ", f" {share} "] for share in ("50 %", "25 %", "12.5 %")),
    ]
    assert len([line for line in first if " seed " in line]) == 4
    assert [line for line in second if line.startswith("| ")] == found
    assert not [line for line in second if " seed " in line]


@pytest.mark.slow
def test_facility_location_is_compared_with_libraries() -> None:
    if not PEERS.exists() and not os.environ.get("MODYN_TESTS_NO_SKIP"):
        pytest.skip("`make peers` installs the libraries")
    lines = run("greedy", "--samples", "600", "--repetitions", "1").splitlines()
    assert float(lines[-1].removeprefix("greedy: ")) > 0
    assert [line.split()[1] for line in lines if line.startswith("| ")] == ["side", "ours", "apricot", "submodlib"]


@pytest.mark.slow
def test_k_center_is_compared_with_another_way() -> None:
    assert float(run("k_center", "--samples", "600", "--repetitions", "1").splitlines()[-1].removeprefix("k_center: ")) > 0


@pytest.mark.slow
def test_many_candidates_are_chosen_from_on_disk() -> None:
    lines = run("many", "--samples", "30000", "--share", "0.01").splitlines()
    assert float(lines[-1].removeprefix("many: ")) < 1
    assert sum("| 300 |" in line for line in lines) == 3
