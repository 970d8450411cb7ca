"""Choose samples that are representative, different, or both, by a submodular function."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from modyn.records import Float32Array, Int64Array
from modyn.trainer_server.downsampling.coresets import Coreset
from modyn.trainer_server.downsampling.coresets.choices import Function, submodular
from modyn.trainer_server.downsampling.coresets.greedy import Greedy
from modyn.trainer_server.downsampling.policies.feature_policy import FeaturePolicy, SelectionBatchConfig, last_layer_gradients
from modyn.trainer_server.downsampling.policies.policy import BalancedConfig

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.policies.scoring_model import ScoringModel


class SubmodularConfig(SelectionBatchConfig):
    """Options of Submodular."""

    submodular_function: Function = Field(
        description="`FacilityLocation`: each sample is near to a chosen one; `GraphCut`: chosen samples are near to all samples and far from "
        "each other; `LogDeterminant`: chosen samples are different"
    )
    submodular_optimizer: Greedy = Field("NaiveGreedy", description="algorithm that grows the set, see `greedy` of Craig")


class Submodular(FeaturePolicy):
    """Greedily chooses samples that maximize a submodular function of the cosines of their gradients. Chosen samples get no weights.

    Iyer and others: Submodular Combinatorial Information Measures with Applications in Machine Learning, 2021, for the functions: graph cut with
    λ = 1/2, log determinant with 1 on the diagonal. Makes one pass over the samples. Then facility location makes about three passes over all pairs
    of candidates, and the other functions make one pass over the gradients for each chosen sample. More than 16,384 candidates are split into blocks
    of 4,096.

    >>> gradients = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]], np.float32)
    >>> policy = Submodular(SubmodularConfig(ratio=50, submodular_function="LogDeterminant"))
    >>> policy.coreset(gradients, 2, np.random.default_rng(7), np.arange(4)).positions.tolist()
    [0, 2]
    """

    Config: ClassVar[type[BalancedConfig]] = SubmodularConfig

    def features(self, model: ScoringModel, batch: Batch) -> Tensor:
        """Return the gradients, (n, f)."""
        return last_layer_gradients(model, batch, self.config.full_grad_approximation)

    def coreset(self, features: Float32Array, size: int, generator: np.random.Generator, among: Int64Array) -> Coreset:
        """Choose by greedy maximization."""
        return submodular(features, size, generator, self.config.submodular_function, self.config.submodular_optimizer, among)
