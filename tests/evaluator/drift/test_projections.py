"""Projections preserve distances in the mean, or as much variance as possible."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from modyn.config.policy import load_policy
from modyn.errors import ConfigError
from modyn.evaluator.drift.projections import BLOCK, PROJECTIONS, Projection


def fitted(id_: str, number: int, reference: torch.Tensor, seed: int = 0) -> Projection:
    kind: Any
    kind, config = load_policy(PROJECTIONS, {"id": id_, "num_components": number}, "id", "projection")
    made: Projection = kind(config, seed)
    made.fit(reference)
    return made


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_random_projection_is_fixed_by_its_seed_and_keeps_squared_distances_in_the_mean() -> None:
    rows = normal(50, 400)
    ratios = []
    for seed in range(20):
        projected = fitted("RandomProjection", 100, rows, seed).apply(rows)
        assert torch.equal(projected, fitted("RandomProjection", 100, normal(3, 400), seed).apply(rows))
        ratios.append(float((torch.pdist(projected) ** 2 / torch.pdist(rows) ** 2).mean()))
    assert sum(ratios) / len(ratios) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(("n", "d"), [(300, 20), (20, BLOCK + 50)], ids=["by covariance", "by products"])
def test_principal_components_are_those_of_a_singular_value_decomposition(n: int, d: int) -> None:
    reference, others = normal(n, d) * torch.linspace(9, 1, d) + 1e4, normal(7, d, seed=2) + 1e4
    projection = fitted("PCAProjection", 5, reference)
    mean = reference.double().mean(0)
    directions = torch.linalg.svd(reference.double() - mean, full_matrices=False).Vh[:5].T
    for rows in (reference, others):
        expected, found = (rows.double() - mean) @ directions, projection.apply(rows).double()
        signs = torch.sign((expected * found).sum(0))
        assert found.shape == (len(rows), 5)
        assert torch.allclose(found * signs, expected, atol=1e-3 * float(expected.abs().max()))
    assert torch.equal(fitted("PCAProjection", 5, reference).apply(others), projection.apply(others))


def test_more_components_than_there_are_values_are_refused() -> None:
    for id_ in PROJECTIONS:
        with pytest.raises(ConfigError, match="num_components is 5, but samples have 4 values"):
            fitted(id_, 5, normal(10, 4))
    with pytest.raises(ConfigError, match="but the reference has 3 samples"):
        fitted("PCAProjection", 4, normal(3, 10))
