"""Draw samples in proportion to a bound of their gradient norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modyn.trainer_server.downsampling.policies.importance import ImportanceSampling

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.policies.scoring_model import ScoringModel


class GradNorm(ImportanceSampling):
    """DLIS: draws samples in proportion to the norm of the derivative of their loss with respect to the logits. The weight of a sample is the inverse
    of its probability, so that the estimate of the gradient of all candidates has no bias.

    Up to a common factor, this norm is an upper bound of the norm of the gradient with respect to all parameters (Katharopoulos and Fleuret: Not All
    Samples Are Created Equal, 2018, equations 16 to 20). Makes one pass without gradients of parameters. Works for any loss, with or without classes.

    >>> import numpy as np
    >>> from modyn.trainer_server.downsampling.policies.policy import Candidates, Draw
    >>> norms = Candidates(np.array([[0.1], [0.9], [0.5], [0.1]], np.float32), np.zeros(4, np.int64), np.arange(4))
    >>> choice = GradNorm(GradNorm.Config(ratio=50)).choose(norms, 2, Draw(seed=7, trigger_id=0, number=0))
    >>> choice.positions.tolist(), [f"{weight:.2f}" for weight in choice.weights]
    ([1, 2], ['0.50', '0.77'])
    """

    @property
    def needs_last_layer(self) -> bool:
        """True, because the derivative is with respect to the output of the last layer."""
        return True

    def score(self, model: ScoringModel, batch: Batch) -> Tensor:
        """Return the norm of the derivative with respect to the logits, (n,)."""
        norms: Tensor = model.last_layer(batch).logit_gradients.norm(dim=1)
        return norms
