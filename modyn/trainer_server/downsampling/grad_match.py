"""Samples whose weighted gradients are together those of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from modyn.records import Float32Array, Int64Array
from modyn.trainer_server.coresets import Coreset
from modyn.trainer_server.coresets.choices import gradmatch
from modyn.trainer_server.downsampling.feature_policy import FeaturePolicy, GradientConfig, last_layer_gradients
from modyn.trainer_server.downsampling.policy import BalancedConfig

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.scoring import ScoringModel


class GradMatchConfig(GradientConfig):
    """Options of GradMatch."""


class GradMatch(FeaturePolicy):
    """Chooses samples, and weights that are not negative, so that the weighted mean of their gradients is near to the mean of all, by orthogonal
    matching pursuit.

    Killamsetty and others: GRAD-MATCH: Gradient Matching based Data Subset Selection for Efficient Deep Model Training, 2021, algorithm 2; its λ is
    0.1 times the mean squared length of a gradient. One pass; then one product of all gradients with what is left of their mean for each chosen one.
    At most 256 are chosen together; larger choices are made in blocks. Where no other gradient brings the mean nearer, the rest is drawn at random
    and weighs 0.
    """

    Config: ClassVar[type[BalancedConfig]] = GradMatchConfig
    weighs = True

    def features(self, model: ScoringModel, batch: Batch) -> Tensor:
        """Gradients, (n, f)."""
        return last_layer_gradients(model, batch, self.config.full_grad_approximation)

    def coreset(self, features: Float32Array, size: int, generator: np.random.Generator, among: Int64Array) -> Coreset:
        """Non-negative orthogonal matching pursuit."""
        return gradmatch(features, size, generator, among=among)
