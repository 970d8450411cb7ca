"""Samples whose gradients stand for those of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from modyn.records import Float32Array, Int64Array
from modyn.trainer_server.coresets import Coreset
from modyn.trainer_server.coresets.choices import craig
from modyn.trainer_server.coresets.greedy import Greedy
from modyn.trainer_server.downsampling.feature_policy import FeaturePolicy, SelectionBatchConfig, last_layer_gradients
from modyn.trainer_server.downsampling.policy import BalancedConfig

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.scoring import ScoringModel


class CraigConfig(SelectionBatchConfig):
    """Options of Craig."""

    greedy: Greedy = Field(
        "NaiveGreedy",
        description="how the set is grown. `NaiveGreedy` and `LazyGreedy` choose the same; `StochasticGreedy` looks at some candidates for each "
        "choice, `ApproximateLazyGreedy` is content with 90 % of the best gain. As all gains are kept while the set grows, none is faster",
    )


class Craig(FeaturePolicy):
    """Chooses samples so that the gradient of each other one is near to that of a chosen one, and weighs each by how many it represents.

    Mirzasoleiman, Bilmes and Leskovec: Coresets for Data-efficient Training of Machine Learning Models, 2020: facility location of the Euclidean
    distances of gradients. One pass; then some three passes over all pairs of candidates, of which more than 16,384 are chosen from in blocks of
    4,096. As in the paper, `balance` chooses within classes.
    """

    Config: ClassVar[type[BalancedConfig]] = CraigConfig
    weighs = True

    def features(self, model: ScoringModel, batch: Batch) -> Tensor:
        """Gradients, (n, f)."""
        return last_layer_gradients(model, batch, self.config.full_grad_approximation)

    def coreset(self, features: Float32Array, size: int, generator: np.random.Generator, among: Int64Array) -> Coreset:
        """Facility location; weights are the numbers represented, divided by their mean."""
        found = craig(features, size, generator, self.config.greedy, among)
        return found._replace(weights=found.weights * np.float32(size / max(1, len(among))))
