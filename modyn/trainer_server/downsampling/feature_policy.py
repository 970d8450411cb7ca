"""Policies that choose by features of the candidates, embeddings or gradients, and not by one number of each."""

from __future__ import annotations

from abc import abstractmethod
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from modyn.records import Float32Array, Int64Array
from modyn.trainer_server.coresets import Coreset
from modyn.trainer_server.downsampling.policy import BalancedConfig, Candidates, Choice, DownsamplingPolicy, Draw

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.scoring import ScoringModel

MOST_FEATURES: Final = 1024
"""Of a gradient. Longer ones are projected at random to so many values, by which products of gradients are off by some 3 % of their lengths."""


class GradientConfig(BalancedConfig):
    """The options of strategies that choose by gradients."""

    full_grad_approximation: Literal["LastLayer", "LastLayerWithEmbedding"] = Field(
        "LastLayer",
        description="what stands for the gradient of a sample: that by the bias of the last layer, which is that by its outputs; or also that by "
        f"its weights, projected at random to {MOST_FEATURES} values where it has more",
    )


class SelectionBatchConfig(GradientConfig):
    """The options of strategies whose published versions score in batches of their own."""

    selection_batch: int = Field(
        64,
        ge=1,
        description="accepted for pipelines that have it, without effect: the choice does not depend on the batches that are scored",
    )


class FeaturePolicy(DownsamplingPolicy):
    """Chooses by features, which are kept of each sample. A last column says that the sample counts: it is 0 where the loss ignores the label."""

    Config: ClassVar[type[BalancedConfig]] = BalancedConfig

    @property
    def needs_last_layer(self) -> bool:
        """True: features come from there."""
        return True

    @abstractmethod
    def features(self, model: ScoringModel, batch: Batch) -> Tensor:
        """The features of each sample of a batch, (n, d)."""

    @abstractmethod
    def coreset(self, features: Float32Array, size: int, generator: np.random.Generator, among: Int64Array) -> Coreset:
        """Choose `size` of the candidates `among`, or fewer if no more are of use.

        Args: features: (N, d). among: ascending. Returns: weights of which the mean over the chosen of wᵢ xᵢ estimates the mean of x over `among`,
        or which do not count, see `weighs`.
        """

    def score(self, model: ScoringModel, batch: Batch) -> Tensor:
        """The features and a column of ones, (n, d + 1)."""
        features = self.features(model, batch)
        scores = features.new_ones((len(features), features.shape[1] + 1))
        scores[:, :-1] = features
        return scores

    def choose(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """What `coreset` chooses. Where that are fewer, others are drawn, which weigh 0 if choices have weights: the estimate has no use of them."""
        return self.choose_among(candidates, np.arange(len(candidates)), size, draw)

    def choose_among(self, candidates: Candidates, among: Int64Array, size: int, draw: Draw) -> Choice:
        """As `choose`, without a copy of the features, which may be larger than memory."""
        generator = draw.generator()
        counted = among[candidates.scores[:, -1][among] > 0]
        found = self.coreset(candidates.scores[:, :-1], min(size, len(counted)), generator, counted)
        missing = size - len(found.positions)
        left = np.setdiff1d(counted, found.positions, assume_unique=True)
        if len(left) < missing:
            left = np.setdiff1d(among, found.positions, assume_unique=True)
        positions = np.concatenate([found.positions, generator.choice(left, missing, replace=False)])
        in_order = np.argsort(positions)
        if not self.weighs or not len(found.positions):  # the mean of nothing but gradients of 0
            return Choice(positions[in_order], np.ones(size, np.float32) if self.weighs else None)
        share = (len(counted) / len(among)) * (size / len(found.positions))
        weights = np.concatenate([found.weights * np.float32(share), np.zeros(missing, np.float32)])
        return Choice(positions[in_order], weights[in_order])


def last_layer_gradients(model: ScoringModel, batch: Batch, approximation: str) -> Tensor:
    """Gradients of the loss of each sample by the last layer, (n, f), or a projection. Args: approximation: of `GradientConfig`.

    That by the weights is g eᵀ, with g that by the outputs and e the embedding, and the product of two of them (g · g′)(e · e′): the elementwise
    product of random projections of g and of e keeps it in expectation (Kar and Karnick: Random Feature Maps for Dot Product Kernels, 2012).
    """
    scores = model.last_layer(batch)
    gradients = scores.logit_gradients.float()
    if approximation == "LastLayer":
        return gradients
    inputs = scores.embeddings.new_ones((len(gradients), scores.embeddings.shape[1] + 1)).float()
    inputs[:, :-1] = scores.embeddings  # the one is for the bias
    if gradients.shape[1] * inputs.shape[1] <= MOST_FEATURES:
        products: Tensor = (gradients.unsqueeze(2) * inputs.unsqueeze(1)).flatten(1)
        return products
    projected: Tensor = inputs @ inputs.new_tensor(_signs(inputs.shape[1], 1))
    projected *= gradients @ gradients.new_tensor(_signs(gradients.shape[1], 0))
    return projected.div_(MOST_FEATURES**0.5)


@cache
def _signs(rows: int, number: int) -> npt.NDArray[np.float32]:
    """The same at random for ever, so that samples that are scored apart can be compared."""
    return np.random.default_rng([rows, number]).choice(np.array([-1, 1], np.float32), (rows, MOST_FEATURES))
