"""Choose the samples that the model can learn but has not learnt yet: their loss is high under the model, but low under a model trained on held-out
samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from modyn.config.selection_parts import RHO_LOSS_FIRST
from modyn.trainer_server.downsampling.policies.policy import (
    Candidates,
    Choice,
    DownsamplingConfig,
    DownsamplingPolicy,
    Draw,
    ScoredTraining,
)
from modyn.trainer_server.downsampling.policies.sampling import highest

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.policies.scoring_model import ScoringModel


class RHOLossConfig(DownsamplingConfig):
    """Options of RHOLoss."""

    holdout_set_strategy: Literal["Simple", "Twin"] = Field(
        "Simple",
        description="`Simple`: a part of the trigger set (`holdout_set_ratio`) is never trained on; the irreducible-loss model is trained on "
        "it. `Twin`: two such models are each trained on one half and score the other; all samples can be trained on",
    )
    holdout_set_ratio_max: int = Field(100, ge=2, description="denominator of `holdout_set_ratio`")
    holdout_set_ratio: int = Field(
        default_factory=lambda rest: max(1, rest.get("holdout_set_ratio_max", 100) // 5),
        ge=1,
        description="share of each partition of the trigger set that `Simple` holds out, in units of 1 / `holdout_set_ratio_max`, rounded down, "
        "in addition to `training.validation`. A hash of seed and key chooses the samples. Default: a fifth; `Twin` uses halves. If "
        "less than one batch is held out, the trigger trains no model",
    )
    il_training_config: dict[str, Any] = Field(
        default_factory=dict,
        description="options of the irreducible-loss model that differ from the sections `model` and `training`: `il_model_id`, "
        "`il_model_config`, and keys of `training`. With `optimizers`, `lr_scheduler` is not taken from `training`. "
        "`use_previous_model`: start from the irreducible-loss model of the previous trigger (false: from scratch). Refused, "
        "because the model cannot follow: `validation`, `num_samples_to_pass`, a pretrained model, optimizers that continue",
    )

    @field_validator("holdout_set_ratio")
    @classmethod
    def _is_a_part(cls, value: int, info: ValidationInfo) -> int:
        if value >= (most := info.data.get("holdout_set_ratio_max", value + 1)):
            raise ValueError(f"{value} of holdout_set_ratio_max {most} leaves nothing to train on; it must be at most {most - 1}")
        return value

    @model_validator(mode="after")
    def _twins_are_halves(self) -> Self:
        given = "holdout_set_ratio" in self.model_fields_set
        if self.holdout_set_strategy == "Twin" and given and 2 * self.holdout_set_ratio != self.holdout_set_ratio_max:
            raise ValueError(
                f"holdout_set_ratio is {self.holdout_set_ratio}, but Twin splits the set into halves: leave it out, or choose Simple"
            )
        return self


class RHOLoss(DownsamplingPolicy):
    """Chooses the samples with the largest reducible loss: the loss under the current model minus the irreducible loss, which is the loss under a
    model trained on other samples (Mindermann and others: Prioritized Training on Points that are Learnable, Worth Learning, and Not Yet Learnt,
    2022, section 3). Chosen samples get no weights. The irreducible losses are computed once, before the training.

    Noise and outliers are not chosen, because their loss is high under both models.

    >>> import numpy as np
    >>> reducible = Candidates(np.array([[-0.2], [1.1], [0.0], [0.4]], np.float32), np.zeros(4, np.int64), np.arange(4))
    >>> RHOLoss(RHOLossConfig(ratio=50)).choose(reducible, 2, Draw(seed=7, trigger_id=0, number=0)).positions.tolist()
    [1, 3]
    """

    Config: ClassVar[type[RHOLossConfig]] = RHOLossConfig
    needs_irreducible_losses: ClassVar[bool] = True

    @property
    def holdout(self) -> Fraction:
        """Percent of the trigger set that is held out from training."""
        if self.config.holdout_set_strategy == "Twin":
            return Fraction(0)
        return Fraction(100 * self.config.holdout_set_ratio, self.config.holdout_set_ratio_max)

    def notes(self, training: ScoredTraining) -> Iterator[tuple[str, str]]:
        """Yield a warning about `sample_then_batch`."""
        if self.config.sample_then_batch:
            yield "sample_then_batch", RHO_LOSS_FIRST

    def score(self, model: ScoringModel, batch: Batch) -> Tensor:
        """Return the reducible losses, (n,). A reducible loss is negative if the current model has a lower loss than the irreducible-loss model."""
        import torch

        assert self.irreducible is not None
        losses = model.losses(batch)
        return losses - torch.from_numpy(self.irreducible(batch.keys.numpy())).to(losses.device)

    def scored(self, model: ScoringModel, batch: Batch) -> Tensor:
        """Return the scores in their stored form, float32 (n, 1); samples with an ignored label come last."""
        scores = self.score(model, batch).float()
        return scores.where(model.counts(batch) > 0, -float("inf")).unsqueeze(1)

    def choose(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """Choose the largest reducible losses."""
        return Choice(highest(candidates.scores[:, 0], size, draw.generator()))
