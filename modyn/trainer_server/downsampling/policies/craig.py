"""Choose samples whose gradients represent the gradients of all other samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from modyn.records import Float32Array, Int64Array
from modyn.trainer_server.downsampling.coresets import Coreset
from modyn.trainer_server.downsampling.coresets.choices import craig
from modyn.trainer_server.downsampling.coresets.greedy import Greedy
from modyn.trainer_server.downsampling.policies.feature_policy import FeaturePolicy, SelectionBatchConfig, last_layer_gradients
from modyn.trainer_server.downsampling.policies.policy import BalancedConfig

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.policies.scoring_model import ScoringModel


class CraigConfig(SelectionBatchConfig):
    """Options of Craig."""

    greedy: Greedy = Field(
        "NaiveGreedy",
        description="algorithm that grows the set. `NaiveGreedy` and `LazyGreedy` choose the same samples; `StochasticGreedy` looks at some "
        "candidates for each choice; `ApproximateLazyGreedy` accepts 90 % of the best gain. All gains are kept while the set grows, "
        "so none is faster",
    )


class Craig(FeaturePolicy):
    """Chooses samples so that the gradient of every sample is near to the gradient of a chosen sample. The weight of a chosen sample is the number of
    samples that it represents.

    Mirzasoleiman, Bilmes and Leskovec: Coresets for Data-efficient Training of Machine Learning Models, 2020: facility location of the Euclidean
    distances of gradients. Makes one pass over the samples, then about three passes over all pairs of candidates. More than 16,384 candidates are
    split into blocks of 4,096. With `balance`, the policy chooses within classes, like the paper.

    >>> gradients = np.array([[1, 0], [1.1, 0], [0.9, 0], [0, 1]], np.float32)
    >>> coreset = Craig(CraigConfig(ratio=50)).coreset(gradients, 2, np.random.default_rng(7), np.arange(4))
    >>> coreset.positions.tolist(), coreset.weights.tolist()
    ([0, 3], [1.5, 0.5])
    """

    Config: ClassVar[type[BalancedConfig]] = CraigConfig
    weighs = True

    def features(self, model: ScoringModel, batch: Batch) -> Tensor:
        """Return the gradients, (n, f)."""
        return last_layer_gradients(model, batch, self.config.full_grad_approximation)

    def coreset(self, features: Float32Array, size: int, generator: np.random.Generator, among: Int64Array) -> Coreset:
        """Choose by facility location; a weight is the number of represented samples divided by the mean number."""
        found = craig(features, size, generator, self.config.greedy, among)
        return found._replace(weights=found.weights * np.float32(size / max(1, len(among))))
