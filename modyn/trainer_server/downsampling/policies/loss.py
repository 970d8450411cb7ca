"""Draw samples in proportion to their loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modyn.trainer_server.downsampling.policies.importance import ImportanceSampling

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.policies.scoring_model import ScoringModel


class LossDownsampling(ImportanceSampling):
    """Draws samples in proportion to their loss. The weight of a sample is the inverse of its probability, so that the estimate of the gradient of
    all candidates has no bias (Katharopoulos and Fleuret: Not All Samples Are Created Equal, 2018, the baseline `loss`).

    Works for any loss that is never negative, with or without classes. For a loss with small slopes near 0, such as squared errors, samples of small
    loss get the largest weights. GradNorm does not have this effect. `uniform_share` bounds the weights.

    >>> import numpy as np
    >>> from modyn.trainer_server.downsampling.policies.policy import Candidates, Draw
    >>> losses = Candidates(np.array([[4], [1], [1], [2]], np.float32), np.zeros(4, np.int64), np.arange(4))
    >>> policy = LossDownsampling(LossDownsampling.Config(ratio=50))
    >>> choice = policy.choose(losses, 2, Draw(seed=7, trigger_id=0, number=0))
    >>> choice.positions.tolist(), [f"{weight:.2f}" for weight in choice.weights]
    ([0, 3], ['0.53', '1.00'])
    """

    def score(self, model: ScoringModel, batch: Batch) -> Tensor:
        """Return the loss of each sample, (n,)."""
        return model.losses(batch)
