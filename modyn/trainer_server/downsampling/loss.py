"""Samples drawn in proportion to their loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modyn.trainer_server.downsampling.policy import Candidates, Choice, DownsamplingPolicy, Draw
from modyn.trainer_server.downsampling.sampling import sample_by_scores

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.scoring import ScoringModel


class LossDownsampling(DownsamplingPolicy):
    """Draws samples with probabilities in proportion to their loss, and weighs each by the inverse of its own, so that the gradient of all
    candidates is estimated without bias (Katharopoulos and Fleuret: Not All Samples Are Created Equal, 2018, the baseline `loss`).

    Serves any loss that is never negative, of classes or not. A loss that ends in a small slope, such as that of squares, gives large weights
    to samples of small loss; GradNorm does not.
    """

    weighs = True

    def score(self, model: ScoringModel, batch: Batch) -> Tensor:
        """The loss of each sample, (n,)."""
        return model.losses(batch)

    def choose(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """Systematic sampling by the losses, without replacement."""
        return Choice(*sample_by_scores(candidates.scores[:, 0], size, draw.generator()))
