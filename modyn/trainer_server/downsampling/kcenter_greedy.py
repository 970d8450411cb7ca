"""Samples that cover all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from modyn.records import Float32Array, Int64Array
from modyn.trainer_server.coresets import Coreset
from modyn.trainer_server.coresets.choices import k_centers
from modyn.trainer_server.downsampling.feature_policy import FeaturePolicy

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.scoring import ScoringModel


class KcenterGreedy(FeaturePolicy):
    """Chooses samples so that none is far from a chosen one, by embeddings: first the one nearest to the mean, then always the one farthest from
    its nearest chosen one. Does not look at labels, but for `balance`, and prefers outliers. Each counts once.

    Embeddings are what the model's own `embedding(data)` returns, and otherwise what its last layer is given.

    Sener and Savarese: Active Learning for Convolutional Neural Networks: A Core-Set Approach, 2018, algorithm 1. One pass; then one product of all
    embeddings with each chosen one. More than 16,384 candidates are chosen from in blocks of 4,096.
    """

    @property
    def needs_last_layer(self) -> bool:
        """False: a model's own embedding may come from anywhere."""
        return False

    @property
    def needs_embedding(self) -> bool:
        """True."""
        return True

    def features(self, model: ScoringModel, batch: Batch) -> Tensor:
        """The embeddings, (n, d)."""
        return model.embeddings(batch)

    def coreset(self, features: Float32Array, size: int, generator: np.random.Generator, among: Int64Array) -> Coreset:
        """Farthest-first traversal."""
        return k_centers(features, size, generator, among)
