"""How small a shift each test of drift finds: the share of draws in which its p-value is below 5 %, by the size of the shift."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from benchmark.line_chart import line_chart
from modyn.config.base import load_section
from modyn.evaluator.drift import DRIFT_METRICS, DriftMetric, compare

PICTURES: Final = Path(__file__).parents[2] / "docs" / "triggers"
SAMPLES, FEATURES, LEVEL = 200, 32, 0.05
TESTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "MMDDriftMetric": {"num_permutations": 100},
    "EnergyDriftMetric": {"num_permutations": 100},
    "KSDriftMetric": {},
    "CVMDriftMetric": {},
    "DomainClassifierDriftMetric": {},
}
Shift = Callable[[torch.Tensor, float], torch.Tensor]


def _mean_of_one(rows: torch.Tensor, size: float) -> torch.Tensor:
    moved = rows.clone()
    moved[:, 0] += size
    return moved


SHIFTS: Final[Mapping[str, tuple[str, tuple[float, ...], Shift]]] = {
    "mean-of-all": (
        "shift of the mean of each of 32 features, in standard deviations",
        (0, 0.05, 0.1, 0.2, 0.3),
        lambda r, s: r + s,
    ),
    "mean-of-one": ("shift of the mean of one of 32 features, in standard deviations", (0, 0.25, 0.5, 1.0, 1.5), _mean_of_one),
    "scale": ("growth of the standard deviation of each feature", (0, 0.05, 0.1, 0.2, 0.4), lambda r, s: r * (1 + s)),
}


def power(name: str, shift: Shift, size: float, draws: int) -> float:
    """The share of `draws` in which the test sees a shift of this size."""
    found = 0
    for draw in range(draws):
        generator = torch.Generator().manual_seed(draw)
        reference, current = (torch.randn(SAMPLES, FEATURES, generator=generator) for _ in range(2))
        p_value = compare(_metric(name, draw), reference, shift(current, size)).p_value
        assert p_value is not None
        found += p_value < LEVEL
    return found / draws


def main() -> None:
    """Write a picture for each kind of shift into the folder of docs/triggers.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200, help="of each test at each size")
    draws = parser.parse_args().draws
    PICTURES.mkdir(exist_ok=True)
    for kind, (axis, sizes, shift) in SHIFTS.items():
        lines = {name: [(size, power(name, shift, size, draws)) for size in sizes] for name in TESTS}
        title = f"Shifts that are found at a level of 5 %, {SAMPLES} against {SAMPLES} samples, {draws} draws"
        (PICTURES / f"power-{kind}.svg").write_text(line_chart(title, (axis, "share found"), lines))
        for name, line in lines.items():
            print(f"{kind} {name}: " + ", ".join(f"{size:g} → {share:.2f}" for size, share in line), flush=True)


def _metric(name: str, seed: int) -> DriftMetric:
    metric = DRIFT_METRICS.get(name)
    return metric(load_section(metric.Config, TESTS[name]), seed)
