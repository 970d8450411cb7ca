"""Samples drawn in proportion to a bound of the norm of their gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modyn.trainer_server.downsampling.importance import ImportanceSampling

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.scoring import ScoringModel


class GradNorm(ImportanceSampling):
    """DLIS: draws samples with probabilities in proportion to the norm of the derivative of their loss by the logits, and weighs each by the
    inverse of its own, so that the gradient of all candidates is estimated without bias.

    Up to a factor that all samples share, that norm bounds the norm of the gradient by all parameters (Katharopoulos and Fleuret: Not All Samples
    Are Created Equal, 2018, equations 16 to 20). One pass without gradients of parameters; for any loss, of classes or not.
    """

    @property
    def needs_last_layer(self) -> bool:
        """True: the derivative is taken at what the last layer returns."""
        return True

    def score(self, model: ScoringModel, batch: Batch) -> Tensor:
        """The norm of the derivative by the logits, (n,)."""
        norms: Tensor = model.last_layer(batch).logit_gradients.norm(dim=1)
        return norms
