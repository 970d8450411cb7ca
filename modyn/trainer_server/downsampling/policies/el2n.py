"""Choose the samples whose predicted probabilities are farthest from the label."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

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


class EL2N(DownsamplingPolicy):
    """Chooses the samples with the largest ‖p − y‖₂, the distance of the model's probabilities from the label (Paul, Ganguli and Dziugaite: Deep
    Learning on a Data Diet, 2021, definition 2.4). Chosen samples get no weights. The paper uses the mean over several models early in their
    training; this policy uses the current model. The policy prefers samples with wrong labels.

    >>> import numpy as np
    >>> distances = Candidates(np.array([[0.1], [1.3], [0.2], [0.9]], np.float32), np.zeros(4, np.int64), np.arange(4))
    >>> EL2N(BalancedConfig(ratio=50)).choose(distances, 2, Draw(seed=7, trigger_id=0, number=0)).positions.tolist()
    [1, 3]
    """

    Config: ClassVar[type[DownsamplingConfig]] = BalancedConfig
    needs_classes = True

    def score(self, model: ScoringModel, batch: Batch) -> Tensor:
        """Return the distances, (n,)."""
        distances: Tensor = model.probability_errors(batch).norm(dim=1)
        return distances

    def choose(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """Choose the largest distances."""
        return Choice(highest(candidates.scores[:, 0], size, draw.generator()))
