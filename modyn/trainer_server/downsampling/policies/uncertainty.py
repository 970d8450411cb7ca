"""Choose the samples that the model is least sure of."""

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


class UncertaintyConfig(BalancedConfig):
    """Options of Uncertainty."""

    score_metric: Literal["LeastConfidence", "Entropy", "Margin"] = Field(
        description="`LeastConfidence`: 1 - the highest probability; `Entropy`: entropy of the probabilities; `Margin`: 1 - the difference "
        "between the two highest"
    )


class Uncertainty(DownsamplingPolicy):
    """Chooses the samples with the least certain class probabilities (Coleman and others: Selection via Proxy, 2020, section 3.1). Does not use
    labels. Chosen samples get no weights.

    Needs a loss of classes. A model with one logit has two classes; all three metrics then choose the same samples.

    >>> import numpy as np
    >>> margins = Candidates(np.array([[0.1], [0.9], [0.5], [0.7]], np.float32), np.zeros(4, np.int64), np.arange(4))
    >>> policy = Uncertainty(UncertaintyConfig(ratio=50, score_metric="Margin"))
    >>> policy.choose(margins, 2, Draw(seed=7, trigger_id=0, number=0)).positions.tolist()
    [1, 3]
    """

    Config: ClassVar[type[DownsamplingConfig]] = UncertaintyConfig
    needs_classes = True

    def score(self, model: ScoringModel, batch: Batch) -> Tensor:
        """Return the uncertainty, (n,); 0 is certain."""
        probabilities = model.probabilities(batch)
        match self.config.score_metric:
            case "LeastConfidence":
                return 1 - probabilities.amax(1)
            case "Entropy":
                return -(probabilities * probabilities.clamp_min(1e-38).log()).sum(1)
        first, second = probabilities.topk(2, dim=1).values.unbind(1)
        return 1 - (first - second)

    def choose(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """Choose the least certain samples."""
        return Choice(highest(candidates.scores[:, 0], size, draw.generator()))
