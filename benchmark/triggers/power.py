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

PICTURES: Final = Path(__file__).parents[2] / "docs" / "how-to" / "triggers"
SAMPLES, FEATURES, CLASSES, LEVEL = 200, 32, 10, 0.05
TESTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "MMDDriftMetric": {"num_permutations": 100},
    "EnergyDriftMetric": {"num_permutations": 100},
    "KSDriftMetric": {},
    "CVMDriftMetric": {},
    "DomainClassifierDriftMetric": {},
}
OF_LABELS: Final[Mapping[str, Mapping[str, Any]]] = {
    "ChiSquaredDriftMetric": {},
    "KSDriftMetric": {},
    "CVMDriftMetric": {},
    "MMDDriftMetric": {"num_permutations": 100},
}
Shift = Callable[[torch.Tensor, float], torch.Tensor]


def _mean_of_one(rows: torch.Tensor, size: float) -> torch.Tensor:
    moved = rows.clone()
    moved[:, 0] += size
    return moved


def _more_of_one_class(labels: torch.Tensor, share: float) -> torch.Tensor:
    """Replace a share of the labels by a class in the middle, evenly over their classes."""
    moved = labels.clone()
    moved[: round(share * len(labels))] = CLASSES // 2
    return moved


SHIFTS: Final[Mapping[str, tuple[str, tuple[float, ...], Shift]]] = {
    "mean-of-all": (
        "shift of the mean of each of 32 features, in standard deviations",
        (0, 0.05, 0.1, 0.2, 0.3),
        lambda r, s: r + s,
    ),
    "mean-of-one": ("shift of the mean of one of 32 features, in standard deviations", (0, 0.25, 0.5, 1.0, 1.5), _mean_of_one),
    "scale": ("growth of the standard deviation of each feature", (0, 0.05, 0.1, 0.2, 0.4), lambda r, s: r * (1 + s)),
    "labels": (
        "share of the labels that become one of 10 classes",
        (0, 0.05, 0.1, 0.15, 0.2),
        _more_of_one_class,
    ),
}


def power(metric: DriftMetric, kind: str, size: float, draws: int) -> float:
    """The share of `draws` in which the test sees a shift of this kind and size."""
    found, shift = 0, SHIFTS[kind][2]
    for draw in range(draws):
        generator = torch.Generator().manual_seed(draw)
        metric.seed = draw
        reference, current = (_drawn(kind, generator) for _ in range(2))
        p_value = compare(metric, reference, shift(current, size)).p_value
        assert p_value is not None
        found += p_value < LEVEL
    return found / draws


def main() -> None:
    """Write a picture for each kind of shift into the folder of docs/how-to/triggers.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200, help="draws of each test at each size")
    draws = parser.parse_args().draws
    PICTURES.mkdir(exist_ok=True)
    for kind, (axis, sizes, _) in SHIFTS.items():
        tests = OF_LABELS if kind == "labels" else TESTS
        lines = {
            name: [(size, power(_metric(name, options), kind, size, draws)) for size in sizes] for name, options in tests.items()
        }
        title = f"Shifts that are found at a level of 5 %, {SAMPLES} against {SAMPLES} samples, {draws} draws"
        (PICTURES / f"power-{kind}.svg").write_text(line_chart(title, (axis, "share found"), lines))
        for name, line in lines.items():
            print(f"{kind} {name}: " + ", ".join(f"{size:g} → {share:.2f}" for size, share in line), flush=True)


def _drawn(kind: str, generator: torch.Generator) -> torch.Tensor:
    if kind == "labels":
        return torch.randint(0, CLASSES, (SAMPLES, 1), generator=generator)
    return torch.randn(SAMPLES, FEATURES, generator=generator)


def _metric(name: str, options: Mapping[str, Any]) -> DriftMetric:
    metric = DRIFT_METRICS.get(name)
    return metric(load_section(metric.Config, options))
