"""Samples that are representative, different, or both, by a submodular function."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from modyn.records import Float32Array, Int64Array
from modyn.trainer_server.coresets import Coreset
from modyn.trainer_server.coresets.choices import Function, submodular
from modyn.trainer_server.coresets.greedy import Greedy
from modyn.trainer_server.downsampling.feature_policy import FeaturePolicy, SelectionBatchConfig, last_layer_gradients
from modyn.trainer_server.downsampling.policy import BalancedConfig

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.scoring import ScoringModel


class SubmodularConfig(SelectionBatchConfig):
    """Options of Submodular."""

    submodular_function: Function = Field(
        description="`FacilityLocation`: each sample is near to a chosen one; `GraphCut`: chosen ones are near to all and far from each other; "
        "`LogDeterminant`: chosen ones are different"
    )
    submodular_optimizer: Greedy = Field("NaiveGreedy", description="how the set is grown, as `greedy` of Craig")


class Submodular(FeaturePolicy):
    """Chooses the samples that maximize a submodular function of the cosines of their gradients, greedily. Each counts once.

    Iyer and others: Submodular Combinatorial Information Measures with Applications in Machine Learning, 2021, for the functions: graph cut with
    λ = 1/2, log determinant with 1 on the diagonal. One pass; then some three passes over all pairs of candidates for facility location, and one
    over the gradients for each chosen sample for the others. More than 16,384 candidates are chosen from in blocks of 4,096.
    """

    Config: ClassVar[type[BalancedConfig]] = SubmodularConfig

    def features(self, model: ScoringModel, batch: Batch) -> Tensor:
        """Gradients, (n, f)."""
        return last_layer_gradients(model, batch, self.config.full_grad_approximation)

    def coreset(self, features: Float32Array, size: int, generator: np.random.Generator, among: Int64Array) -> Coreset:
        """Greedy maximization."""
        return submodular(features, size, generator, self.config.submodular_function, self.config.submodular_optimizer, among)
