"""Importance sampling: draw samples with probabilities that depend on their scores, and weigh them to estimate the gradient of all samples."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from modyn.trainer_server.downsampling.policies.policy import Candidates, Choice, DownsamplingConfig, DownsamplingPolicy, Draw
from modyn.trainer_server.downsampling.policies.sampling import sample_by_scores


class ImportanceConfig(DownsamplingConfig):
    """The options of policies that draw in proportion to scores."""

    uniform_share: float = Field(
        0.1,
        ge=0,
        le=1,
        description="share of the probability that is equal for all samples; the rest is proportional to the scores. It bounds weights by 1 / "
        "`uniform_share`, and the mean gradient stays unbiased; 0: no bound, so a sample with a tiny score may count a thousandfold",
    )


class ImportanceSampling(DownsamplingPolicy):
    """Draws samples without replacement, and weighs each by k / (N πᵢ). The probability πᵢ is proportional to (1 - λ) sᵢ / Σ s + λ / N, with score sᵢ
    and λ = `uniform_share`. On average over draws, the weighted gradient of the k chosen samples equals the gradient of all N samples (Katharopoulos
    and Fleuret: Not All Samples Are Created Equal, 2018, equations 2 and 3; the mixture with a uniform share is the defensive mixture of Hesterberg,
    1995).

    Scores come from the model in training mode. With dropout, a memorised sample has a loss near 0 in evaluation mode, and would get a weight that is
    too large for its loss under dropout. BatchNorm uses its running statistics.
    """

    Config: ClassVar[type[DownsamplingConfig]] = ImportanceConfig
    weighs = True
    scores_as_trained = True

    def choose(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """Draw by systematic sampling, without replacement."""
        options: Any = self.config
        return Choice(
            *sample_by_scores(candidates.scores[:, 0], size, draw.generator(), options.uniform_share, candidates.usable)
        )
