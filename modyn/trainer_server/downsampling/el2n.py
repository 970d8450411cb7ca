"""The samples whose predicted probabilities are furthest from their label."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

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


class EL2N(DownsamplingPolicy):
    """Chooses the samples with the largest ‖p − y‖₂, the distance of the model's probabilities from the label (Paul, Ganguli and Dziugaite: Deep
    Learning on a Data Diet, 2021, definition 2.4). Each counts once.

    The paper takes the mean over several models early in their training; here it is the present model. Where labels are wrong, these come first.
    """

    Config: ClassVar[type[DownsamplingConfig]] = BalancedConfig
    needs_classes = True

    def score(self, model: ScoringModel, batch: Batch) -> Tensor:
        """The distance, (n,)."""
        distances: Tensor = model.probability_errors(batch).norm(dim=1)
        return distances

    def choose(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """The furthest."""
        return Choice(highest(candidates.scores[:, 0], size, draw.generator()))
