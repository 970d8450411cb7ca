"""Shared code of tests in the environments of the drift libraries. Only `make test-extras` collects and runs these tests."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.evaluator.drift.libraries.no_network import refuse_network


def pytest_sessionstart() -> None:
    """Refuse the network before the libraries are imported. Other runs, which only import this file during collection, do not call this hook."""
    refuse_network()


N, M, D = 300, 250, 8


@pytest.fixture(params=["none", "mean", "covariance", "label"])
def sets(request: pytest.FixtureRequest) -> tuple[torch.Tensor, torch.Tensor]:
    """Reference (300, 8) and current (250, 8) samples. The parameter names the shift between them."""
    rng = np.random.default_rng(11)

    def draw(count: int, share_of_second_class: float) -> npt.NDArray[np.float64]:
        rows = rng.normal(1.0, 1.0, (count, D))
        rows[rng.random(count) < share_of_second_class, :2] += 4
        return rows

    reference, current = draw(N, 0.3), draw(M, 0.7 if request.param == "label" else 0.3)
    if request.param == "mean":
        current += 0.3
    elif request.param == "covariance":
        current[:, 3] = 0.9 * current[:, 4] + 0.3 * current[:, 3]
    return torch.from_numpy(reference).float(), torch.from_numpy(current).float()
