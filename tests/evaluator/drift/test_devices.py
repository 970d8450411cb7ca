"""Each metric and projection returns the same values on a GPU and on a CPU, up to rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from modyn.config.base import load_section
from modyn.config.policy import load_policy
from modyn.evaluator.drift import DRIFT_METRICS, compare, missing_modules
from modyn.evaluator.drift.projections import PROJECTIONS

pytestmark = pytest.mark.gpu
NUM_PERMUTATIONS = 50
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "MMDDriftMetric": [{}, {"biased": True, "bandwidth": 3.0}, {"configure_kernel_from_x_ref": False}],
    "EnergyDriftMetric": [{}],
    "MeanDistanceDriftMetric": [{"distance": "euclidean"}, {"distance": "cosine"}],
    "WassersteinDriftMetric": [{"normalize": True}, {"normalize": False}],
}
WITH_PERMUTATIONS = ("MMDDriftMetric", "EnergyDriftMetric")
CASES = [
    *((id_, options) for id_ in DRIFT_METRICS.builtin for options in OPTIONS.get(id_, [{}])),
    *((id_, {"num_permutations": NUM_PERMUTATIONS}) for id_ in WITH_PERMUTATIONS),
]
OWN = [(id_, options) for id_, options in CASES if not missing_modules(DRIFT_METRICS.get(id_))]
SIZES = (5200, 1300)
"""Rows of both sets: more rows than in a block of pairs, and more than the median is computed from."""
D = 17


def rows(kind: str, n: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if kind == "labels":
        return 10**9 + torch.randint(0, 5 + seed, (n, 1), generator=generator)
    found = torch.randn(n, D, generator=generator) + 0.1 * seed
    return found + 1e4 if kind == "far away" else found


@pytest.mark.parametrize("kind", ["plain", "far away", "labels"])
@pytest.mark.parametrize(("id_", "options"), OWN)
def test_metrics(id_: str, options: dict[str, Any], kind: str) -> None:
    metric = DRIFT_METRICS.get(id_)
    config = load_section(metric.Config, options)
    sets = [rows(kind, size, seed) for seed, size in enumerate(SIZES)]
    sets = [part.round() if metric.by_category else part for part in sets]
    on_cpu = compare(metric(config, 3), *sets)
    found = compare(metric(config, 3), *(part.cuda() for part in sets))
    assert found.distance == pytest.approx(on_cpu.distance, rel=1e-3, abs=1e-6)
    # A division as far apart as the sets are may change sides by rounding.
    tolerance = 2 / (NUM_PERMUTATIONS + 1) if id_ in WITH_PERMUTATIONS else 1e-6
    expected = None if on_cpu.p_value is None else pytest.approx(on_cpu.p_value, rel=1e-3, abs=tolerance)
    assert found.p_value == expected


@pytest.mark.parametrize("width", [D, 5000], ids=["few values", "many values"])
@pytest.mark.parametrize("id_", PROJECTIONS.builtin)
def test_projections(id_: str, width: int) -> None:
    generator = torch.Generator().manual_seed(0)
    reference, others = (torch.randn(n, width, generator=generator) * torch.linspace(9, 1, width) + 1e3 for n in (300, 7))

    def projected(on: str) -> torch.Tensor:
        kind: Any
        kind, config = load_policy(PROJECTIONS, {"id": id_, "num_components": 3}, "id", "projection")
        projection = kind(config, 3)
        projection.fit(reference.to(on))
        made: torch.Tensor = projection.apply(others.to(on))
        assert made.device.type == on
        return made.cpu()

    on_cpu = projected("cpu")
    assert torch.allclose(projected("cuda"), on_cpu, rtol=1e-3, atol=1e-4 * float(on_cpu.abs().max()))
