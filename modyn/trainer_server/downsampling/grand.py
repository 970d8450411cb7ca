"""The samples with the largest gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from modyn.trainer_server.downsampling.policy import (
    BalancedConfig,
    Candidates,
    Choice,
    DownsamplingConfig,
    DownsamplingPolicy,
    Draw,
)
from modyn.trainer_server.downsampling.sampling import highest

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.scoring import ScoringModel


class GraNdConfig(BalancedConfig):
    """Options of GraNd."""

    parameters: Literal["All", "LastLayer"] = Field(
        "All", description="by which the gradient is taken: all costs a backward pass, those of the last layer are in closed form"
    )


class GraNd(DownsamplingPolicy):
    """Chooses the samples whose loss has the gradient of the largest norm by the parameters that are trained (Paul, Ganguli and Dziugaite: Deep
    Learning on a Data Diet, 2021, definition 2.1). Each counts once; GradNorm draws by a bound of that norm instead.

    The paper takes the mean over several models at the start of their training; here it is the present model. For any loss, of classes or not.
    """

    Config: ClassVar[type[DownsamplingConfig]] = GraNdConfig

    @property
    def needs_last_layer(self) -> bool:
        """Whether the gradient is that by the last layer."""
        return bool(self.config.parameters == "LastLayer")

    def score(self, model: ScoringModel, batch: Batch) -> Tensor:
        """The norm, (n,). That of g eᵀ and g, the gradients by the last layer's weight and bias, is ‖g‖ √(‖e‖² + 1)."""
        if not self.needs_last_layer:
            return model.gradient_norms(batch)
        scores = model.last_layer(batch)
        norms: Tensor = scores.logit_gradients.norm(dim=1) * (scores.embeddings.square().sum(1) + 1).sqrt()
        return norms

    def choose(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """The largest."""
        return Choice(highest(candidates.scores[:, 0], size, draw.generator()))
