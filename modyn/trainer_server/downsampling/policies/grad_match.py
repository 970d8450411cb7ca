"""Choose samples whose weighted mean gradient is near to the mean gradient of all samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from modyn.records import Float32Array, Int64Array
from modyn.trainer_server.downsampling.coresets import Coreset
from modyn.trainer_server.downsampling.coresets.choices import gradmatch
from modyn.trainer_server.downsampling.policies.feature_policy import (
    MOST_FEATURES,
    FeaturePolicy,
    GradientConfig,
    last_layer_gradients,
)
from modyn.trainer_server.downsampling.policies.policy import BalancedConfig, ScoredTraining

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.policies.scoring_model import ScoringModel


class GradMatchConfig(GradientConfig):
    """Options of GradMatch."""

    balance: bool = Field(
        True,
        description="match the mean gradient of each class separately, as the paper does, so that each keeps its share of the samples. false: "
        "match the mean of all gradients; it is nearly 0 after some training, so weights become tiny, and the model stops learning",
    )
    full_grad_approximation: Literal["LastLayer", "LastLayerWithEmbedding"] = Field(
        "LastLayerWithEmbedding",
        description="gradient of a sample. `LastLayerWithEmbedding`: by bias and weights of the last layer, as in the paper, projected at "
        f"random to {MOST_FEATURES} values if there are more. `LastLayer`: by the bias alone, with one value per output; a handful "
        "of samples match it, so small shares may collapse",
    )


class GradMatch(FeaturePolicy):
    """Chooses samples and non-negative weights by orthogonal matching pursuit, so that the weighted mean of their gradients is near to the mean of
    all gradients.

    Killamsetty and others: GRAD-MATCH: Gradient Matching based Data Subset Selection for Efficient Deep Model Training, 2021, algorithm 2, within
    each class, with gradients of the last layer's weights and bias. λ is 0.1 times the mean squared length of a gradient. Makes one pass over the
    samples. For each chosen sample, multiplies all gradients by the residual of their mean. At most 256 samples are chosen together; larger choices
    are made in blocks. If no other gradient improves the mean, the remaining samples are drawn at random with weight 0.

    >>> gradients = np.array([[2, 0], [0, 2], [0.1, 0], [0, 0.1]], np.float32)
    >>> coreset = GradMatch(GradMatchConfig(ratio=50)).coreset(gradients, 2, np.random.default_rng(7), np.arange(4))
    >>> coreset.positions.tolist(), coreset.weights.round(2).tolist()
    ([0, 1], [0.5, 0.5])
    """

    Config: ClassVar[type[BalancedConfig]] = GradMatchConfig
    weighs = True

    def notes(self, training: ScoredTraining) -> Iterator[tuple[str, str]]:
        """Warn of `balance: false` if the loss has classes, and of `full_grad_approximation: LastLayer`, because the defaults work better."""
        if training.has_classes and not self.config.balance:
            text = "the mean gradient of all classes is nearly 0 once the model knows something: weights become tiny, and the training stands still"
            yield "balance", f"{text}; leave it out"
        if self.config.full_grad_approximation == "LastLayer":
            text = "LastLayer has one value an output, which a handful of samples match: small shares may collapse"
            yield "full_grad_approximation", f"{text}; leave it out for LastLayerWithEmbedding"

    def features(self, model: ScoringModel, batch: Batch) -> Tensor:
        """Return the gradients, (n, f)."""
        return last_layer_gradients(model, batch, self.config.full_grad_approximation)

    def coreset(self, features: Float32Array, size: int, generator: np.random.Generator, among: Int64Array) -> Coreset:
        """Choose by non-negative orthogonal matching pursuit."""
        return gradmatch(features, size, generator, among=among)
