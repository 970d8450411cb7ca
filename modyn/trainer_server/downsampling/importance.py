"""Importance sampling: samples drawn with probabilities that follow their scores, and weighed so that the gradient of all is estimated."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from modyn.trainer_server.downsampling.policy import Candidates, Choice, DownsamplingConfig, DownsamplingPolicy, Draw
from modyn.trainer_server.downsampling.sampling import sample_by_scores


class ImportanceConfig(DownsamplingConfig):
    """Options of strategies that draw in proportion to scores."""

    uniform_share: float = Field(
        0.1,
        ge=0,
        le=1,
        description="share of the probability that all samples have alike, whatever their score; the rest follows the scores. It bounds weights by "
        "1 / `uniform_share`, and the gradient stays right on average; 0: none, so that a sample of tiny score may count a thousandfold",
    )


class ImportanceSampling(DownsamplingPolicy):
    """Draws samples without replacement with probabilities πᵢ in proportion to (1 - λ) sᵢ / Σ s + λ / N, by their scores and `uniform_share` λ, and
    weighs each by k / (N πᵢ): the weighted gradient of the k chosen is, on average over draws, that of all N (Katharopoulos and Fleuret: Not All
    Samples Are Created Equal, 2018, equations 2 and 3; the mixture with a uniform share is the defensive one of Hesterberg, 1995).

    Samples are scored as the model trains: with dropout, what is learnt by heart in evaluation mode has a loss of nearly 0, and would be drawn with
    a weight that its loss under dropout does not bear. Statistics of BatchNorm are those kept.
    """

    Config: ClassVar[type[DownsamplingConfig]] = ImportanceConfig
    weighs = True
    scores_as_trained = True

    def choose(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """Systematic sampling by the scores, without replacement."""
        options: Any = self.config
        return Choice(
            *sample_by_scores(candidates.scores[:, 0], size, draw.generator(), options.uniform_share, candidates.usable)
        )
