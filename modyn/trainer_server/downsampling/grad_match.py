"""Samples whose weighted gradients are together those of all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from modyn.records import Float32Array, Int64Array
from modyn.trainer_server.coresets import Coreset
from modyn.trainer_server.coresets.choices import gradmatch
from modyn.trainer_server.downsampling.feature_policy import MOST_FEATURES, FeaturePolicy, GradientConfig, last_layer_gradients
from modyn.trainer_server.downsampling.policy import BalancedConfig, ScoredTraining

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.scoring import ScoringModel


class GradMatchConfig(GradientConfig):
    """Options of GradMatch."""

    balance: bool = Field(
        True,
        description="match the mean gradient of each class by itself, as the paper does, so that each keeps its share of the samples. false: match "
        "that of all at once; it is nearly 0 once the model knows something, weights become tiny, and the training stands still",
    )
    full_grad_approximation: Literal["LastLayer", "LastLayerWithEmbedding"] = Field(
        "LastLayerWithEmbedding",
        description="what stands for the gradient of a sample. `LastLayerWithEmbedding`: that by the bias and the weights of the last layer, as in "
        f"the paper, projected at random to {MOST_FEATURES} values where it has more. `LastLayer`: that by the bias alone, of one value an output, "
        "which a handful of samples match: small shares may collapse",
    )


class GradMatch(FeaturePolicy):
    """Chooses samples, and weights that are not negative, so that the weighted mean of their gradients is near to the mean of all, by orthogonal
    matching pursuit.

    Killamsetty and others: GRAD-MATCH: Gradient Matching based Data Subset Selection for Efficient Deep Model Training, 2021, algorithm 2, for each
    class and by the gradients of the last layer with its embedding; its λ is 0.1 times the mean squared length of a gradient. One pass; then one
    product of all gradients with what is left of their mean for each chosen one. At most 256 are chosen together; larger choices are made in
    blocks. Where no other gradient brings the mean nearer, the rest is drawn at random and weighs 0.
    """

    Config: ClassVar[type[BalancedConfig]] = GradMatchConfig
    weighs = True

    def notes(self, training: ScoredTraining) -> Iterator[tuple[str, str]]:
        """That the defaults are better, that of `balance` where labels are classes."""
        if training.has_classes and not self.config.balance:
            text = "the mean gradient of all classes is nearly 0 once the model knows something: weights become tiny, and the training stands still"
            yield "balance", f"{text}; leave it out"
        if self.config.full_grad_approximation == "LastLayer":
            text = "LastLayer has one value an output, which a handful of samples match: small shares may collapse"
            yield "full_grad_approximation", f"{text}; leave it out for LastLayerWithEmbedding"

    def features(self, model: ScoringModel, batch: Batch) -> Tensor:
        """Gradients, (n, f)."""
        return last_layer_gradients(model, batch, self.config.full_grad_approximation)

    def coreset(self, features: Float32Array, size: int, generator: np.random.Generator, among: Int64Array) -> Coreset:
        """Non-negative orthogonal matching pursuit."""
        return gradmatch(features, size, generator, among=among)
