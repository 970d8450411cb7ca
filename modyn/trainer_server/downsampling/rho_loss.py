"""The samples that are not learnt yet, and can be: high loss, but low under a model of samples that are held out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from modyn.config.selection_advice import RHO_LOSS_FIRST
from modyn.records import Float32Array, Int64Array
from modyn.trainer_server.downsampling.policy import (
    Candidates,
    Choice,
    DownsamplingConfig,
    DownsamplingPolicy,
    Draw,
    ScoredTraining,
)
from modyn.trainer_server.downsampling.sampling import highest

if TYPE_CHECKING:
    from torch import Tensor

    from modyn.dataset.batch import Batch
    from modyn.trainer_server.downsampling.scoring import ScoringModel


class RHOLossConfig(DownsamplingConfig):
    """Options of RHOLoss."""

    holdout_set_strategy: Literal["Simple", "Twin"] = Field(
        "Simple",
        description="Simple: `holdout_set_ratio` percent of the trigger set are held out, never trained on, and the irreducible-loss model is "
        "trained on these. Twin: two such models, each trained on one half and scoring the other; all samples can be trained on",
    )
    holdout_set_ratio_max: int = Field(100, ge=2, description="what `holdout_set_ratio` is a share of")
    holdout_set_ratio: int = Field(
        default_factory=lambda rest: max(1, rest.get("holdout_set_ratio_max", 100) // 5),
        ge=1,
        description="share of each partition of the trigger set that Simple holds out, in units of 1 / `holdout_set_ratio_max`, rounded down, beside "
        "`training.validation`; drawn by a hash of seed and key. Left out: a fifth. Twin: halves. A trigger set "
        "that holds out less than a batch trains nothing",
    )
    il_training_config: dict[str, Any] = Field(
        default_factory=dict,
        description="how an irreducible-loss model is trained, where it differs from the sections `model` and `training`: `il_model_id`, "
        "`il_model_config`, and the names of `training`; with `optimizers`, `lr_scheduler` is not the training's. `use_previous_model`: start from "
        "that of the trigger before, which is kept for it (false: from scratch). Refused is what the model cannot follow: `validation`, "
        "`num_samples_to_pass`, a pretrained model, optimizers that go on",
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
    """Chooses the samples with the largest reducible loss: the loss under the present model, less the irreducible one, under a model that was
    trained on other samples (Mindermann and others: Prioritized Training on Points that are Learnable, Worth Learning, and Not Yet Learnt,
    2022, section 3). Each counts once. The irreducible losses of a training are computed once, before it.

    Noise and outliers have a high loss under both models, and are left out.
    """

    Config: ClassVar[type[RHOLossConfig]] = RHOLossConfig
    irreducible: Callable[[Int64Array], Float32Array] | None = None
    """The irreducible losses, float32 (n,), of the samples with these keys, int64 (n,). Set by the trainer, before it scores."""

    @property
    def holdout(self) -> Fraction:
        """Percent of the trigger set that is not trained on."""
        if self.config.holdout_set_strategy == "Twin":
            return Fraction(0)
        return Fraction(100 * self.config.holdout_set_ratio, self.config.holdout_set_ratio_max)

    def notes(self, training: ScoredTraining) -> Iterator[tuple[str, str]]:
        """A warning of `sample_then_batch`."""
        if self.config.sample_then_batch:
            yield "sample_then_batch", RHO_LOSS_FIRST

    def score(self, model: ScoringModel, batch: Batch) -> Tensor:
        """The reducible loss, (n,); negative where a sample is learnt better than it could be from others."""
        import torch

        assert self.irreducible is not None
        losses = model.losses(batch)
        return losses - torch.from_numpy(self.irreducible(batch.keys.numpy())).to(losses.device)

    def scored(self, model: ScoringModel, batch: Batch) -> Tensor:
        """The scores as they are kept, float32 (n, 1): samples whose label the loss ignores come last."""
        scores = self.score(model, batch).float()
        return scores.where(model.counts(batch) > 0, -float("inf")).unsqueeze(1)

    def choose(self, candidates: Candidates, size: int, draw: Draw) -> Choice:
        """The largest."""
        return Choice(highest(candidates.scores[:, 0], size, draw.generator()))
