"""Choose samples so that every other sample is near to a chosen one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from modyn.records import Float32Array, Int64Array
from modyn.trainer_server.downsampling.coresets import Coreset
from modyn.trainer_server.downsampling.coresets.choices import k_centers
from modyn.trainer_server.downsampling.policies.feature_policy import FeaturePolicy

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.policies.scoring_model import ScoringModel


class KcenterGreedy(FeaturePolicy):
    """Chooses samples by embeddings so that each sample is near to a chosen sample. The first chosen sample is nearest to the mean. Each next sample
    is the farthest from its nearest chosen sample. The policy ignores labels, except for `balance`, and prefers outliers. Chosen samples get no
    weights.

    The embeddings are the output of the model's `embedding(data)`, or else the input of the model's last layer.

    Sener and Savarese: Active Learning for Convolutional Neural Networks: A Core-Set Approach, 2018, algorithm 1. The policy makes one pass over the
    samples, and then one product with all embeddings for each chosen sample. More than 16,384 candidates are split into blocks of 4,096.

    >>> embeddings = np.array([[0, 0], [0.1, 0], [5, 5], [-5, 5]], np.float32)
    >>> policy = KcenterGreedy(KcenterGreedy.Config(ratio=75))
    >>> policy.coreset(embeddings, 3, np.random.default_rng(7), np.arange(4)).positions.tolist()
    [0, 2, 3]
    """

    @property
    def needs_last_layer(self) -> bool:
        """False, because a model's own embedding may come from any layer."""
        return False

    @property
    def needs_embedding(self) -> bool:
        """True, because the policy compares embeddings."""
        return True

    def features(self, model: ScoringModel, batch: Batch) -> Tensor:
        """Return the embeddings, (n, d)."""
        return model.embeddings(batch)

    def coreset(self, features: Float32Array, size: int, generator: np.random.Generator, among: Int64Array) -> Coreset:
        """Choose by farthest-first traversal."""
        return k_centers(features, size, generator, among)
