"""Policies that choose by several features of each candidate (embeddings or gradients) instead of one score."""

from __future__ import annotations

from abc import abstractmethod
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from modyn.records import Float32Array, Int64Array
from modyn.trainer_server.downsampling.coresets import Coreset
from modyn.trainer_server.downsampling.policies.policy import BalancedConfig, Candidates, Choice, DownsamplingPolicy, Draw

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.policies.scoring_model import ScoringModel

MOST_FEATURES: Final = 1024
"""Largest number of values in a gradient. Longer gradients are projected at random; the error of a product is then about 3 % of the product of the
lengths.
"""


class GradientConfig(BalancedConfig):
    """The options of policies that choose by gradients."""

    full_grad_approximation: Literal["LastLayer", "LastLayerWithEmbedding"] = Field(
        "LastLayer",
        description="gradient of a sample. `LastLayer`: by the bias of the last layer, which equals that by the model's outputs; "
        f"`LastLayerWithEmbedding`: also by the weights of this layer, projected at random to {MOST_FEATURES} values if there are "
        "more",
    )


class SelectionBatchConfig(GradientConfig):
    """The options of policies whose published versions have a separate batch size for scoring."""

    selection_batch: int = Field(
        64,
        ge=1,
        description="accepted for existing pipelines, without effect: the choice does not depend on the scored batches",
    )


class FeaturePolicy(DownsamplingPolicy):
    """Chooses by features, which are kept for each sample. The last column of the scores is 0 if the loss ignores the sample's label, otherwise 1."""

    Config: ClassVar[type[BalancedConfig]] = BalancedConfig

    @property
    def needs_last_layer(self) -> bool:
        """True, because the features are computed at the last layer."""
        return True

    @abstractmethod
    def features(self, model: ScoringModel, batch: Batch) -> Tensor:
        """Return the features of each sample of a batch, (n, d)."""

    @abstractmethod
    def coreset(self, features: Float32Array, size: int, generator: np.random.Generator, among: Int64Array) -> Coreset:
        """Choose `size` of the candidates `among`; fewer if no other candidate is useful.

        Args: features: (N, d). among: ascending. Returns: a coreset. If `weighs`, the mean of wᵢ xᵢ over the chosen samples, with the coreset's
        weights wᵢ, estimates the mean of x over `among`.
        """

    def score(self, model: ScoringModel, batch: Batch) -> Tensor:
        """Return the features and a column of ones, (n, d + 1)."""
        features = self.features(model, batch)
        scores = features.new_ones((len(features), features.shape[1] + 1))
        scores[:, :-1] = features
        return scores

    def choose(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """Choose by `coreset`. If `coreset` chooses fewer than `size` samples, the missing samples are drawn, with weight 0 if the policy weighs
        samples.
        """
        return self.choose_among(candidates, np.arange(len(candidates)), size, draw)

    def choose_among(self, candidates: Candidates, among: Int64Array, size: int, draw: Draw) -> Choice:
        """Choose like `choose`, but without copying the features, because a copy may exceed the memory."""
        generator = draw.generator()
        counted = among[candidates.scores[:, -1][among] > 0]
        found = self.coreset(candidates.scores[:, :-1], min(size, len(counted)), generator, counted)
        missing = size - len(found.positions)
        left = np.setdiff1d(counted, found.positions, assume_unique=True)
        # If there are too few samples with a label, samples with an ignored label fill the choice.
        if len(left) < missing:
            left = np.setdiff1d(among, found.positions, assume_unique=True)
        positions = np.concatenate([found.positions, generator.choice(left, missing, replace=False)])
        in_order = np.argsort(positions)
        if not self.weighs or not len(found.positions):  # all gradients are 0
            return Choice(positions[in_order], np.ones(size, np.float32) if self.weighs else None)
        # The coreset's weights are relative to `counted` and to the number of found positions. `share` makes them relative to `among` and `size`.
        share = (len(counted) / len(among)) * (size / len(found.positions))
        weights = np.concatenate([found.weights * np.float32(share), np.zeros(missing, np.float32)])
        return Choice(positions[in_order], weights[in_order])


def last_layer_gradients(model: ScoringModel, batch: Batch, approximation: str) -> Tensor:
    """Return the gradient of each sample's loss with respect to the last layer, or its projection: (n, f). Args: approximation: see `GradientConfig`.

    The gradient with respect to the layer's weights is g eᵀ, with the embedding e and the gradient g with respect to the outputs. The product of two
    such gradients is (g · g′)(e · e′). The elementwise product of random projections of g and e preserves this product in expectation (Kar and
    Karnick: Random Feature Maps for Dot Product Kernels, 2012).
    """
    scores = model.last_layer(batch)
    gradients = scores.logit_gradients.float()
    if approximation == "LastLayer":
        return gradients
    inputs = scores.embeddings.new_ones((len(gradients), scores.embeddings.shape[1] + 1)).float()
    inputs[:, :-1] = scores.embeddings  # the last column, 1, is for the bias
    if gradients.shape[1] * inputs.shape[1] <= MOST_FEATURES:
        products: Tensor = (gradients.unsqueeze(2) * inputs.unsqueeze(1)).flatten(1)
        return products
    projected: Tensor = inputs @ inputs.new_tensor(_signs(inputs.shape[1], 1))
    projected *= gradients @ gradients.new_tensor(_signs(gradients.shape[1], 0))
    return projected.div_(MOST_FEATURES**0.5)


@cache
def _signs(rows: int, number: int) -> npt.NDArray[np.float32]:
    """Return random signs that are the same in every call, so that samples from different calls are comparable."""
    return np.random.default_rng([rows, number]).choice(np.array([-1, 1], np.float32), (rows, MOST_FEATURES))
