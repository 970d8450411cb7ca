"""Samples drawn in proportion to their loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modyn.trainer_server.downsampling.importance import ImportanceSampling

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.scoring import ScoringModel


class LossDownsampling(ImportanceSampling):
    """Draws samples with probabilities in proportion to their loss, and weighs each by the inverse of its own, so that the gradient of all
    candidates is estimated without bias (Katharopoulos and Fleuret: Not All Samples Are Created Equal, 2018, the baseline `loss`).

    Serves any loss that is never negative, of classes or not. A loss that ends in a small slope, such as that of squares, gives the largest weights
    to samples of small loss; GradNorm does not. `uniform_share` bounds them.
    """

    def score(self, model: ScoringModel, batch: Batch) -> Tensor:
        """The loss of each sample, (n,)."""
        return model.losses(batch)
