"""Choose the samples with the largest gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from modyn.trainer_server.downsampling.policies.policy import (
    BalancedConfig,
    Candidates,
    Choice,
    DownsamplingConfig,
    DownsamplingPolicy,
    Draw,
)
from modyn.trainer_server.downsampling.policies.sampling import highest

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.policies.scoring_model import ScoringModel


class GraNdConfig(BalancedConfig):
    """Options of GraNd."""

    parameters: Literal["All", "LastLayer"] = Field(
        "All", description="parameters of the gradient: `All` costs a backward pass; `LastLayer` has a closed form"
    )


class GraNd(DownsamplingPolicy):
    """Chooses the samples with the largest norm of the gradient of their loss with respect to the trained parameters (Paul, Ganguli and Dziugaite:
    Deep Learning on a Data Diet, 2021, definition 2.1). Chosen samples get no weights. GradNorm draws samples by a bound of this norm instead.

    The paper uses the mean over several models at the start of their training; this policy uses the current model. Works for any loss.

    >>> import numpy as np
    >>> norms = Candidates(np.array([[0.1], [0.9], [0.5], [2.0]], np.float32), np.zeros(4, np.int64), np.arange(4))
    >>> GraNd(GraNdConfig(ratio=50)).choose(norms, 2, Draw(seed=7, trigger_id=0, number=0)).positions.tolist()
    [1, 3]
    """

    Config: ClassVar[type[DownsamplingConfig]] = GraNdConfig

    @property
    def needs_last_layer(self) -> bool:
        """Whether only the gradient with respect to the last layer is used."""
        return bool(self.config.parameters == "LastLayer")

    def score(self, model: ScoringModel, batch: Batch) -> Tensor:
        """Return the norms, (n,). The gradients with respect to the last layer's weight and bias, g eᵀ and g, together have norm ‖g‖ √(‖e‖² + 1)."""
        if not self.needs_last_layer:
            return model.gradient_norms(batch)
        scores = model.last_layer(batch)
        norms: Tensor = scores.logit_gradients.norm(dim=1) * (scores.embeddings.square().sum(1) + 1).sqrt()
        return norms

    def choose(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """Choose the largest norms."""
        return Choice(highest(candidates.scores[:, 0], size, draw.generator()))
