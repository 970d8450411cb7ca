"""The section `online`: proactive training, between the trainings that `trigger` asks for. Each service reads the part that it acts on."""

from __future__ import annotations

from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from modyn.config.base import PlacedError, Section

ONLINE: Final = "online"
"""Name of the section."""


class LearningRateRule(Section):
    """How the learning rates of `training.optimizers` change over the stream. Rates that adapt by themselves (Adagrad, Adam) need no rule."""

    rule: Literal["constant", "inverse_scaling"] = Field(
        "constant",
        description="`inverse_scaling`: step t of the stream, counted from 1, has the rate lr / t^power; steps are counted anew after each "
        "training that `trigger` asked for",
    )
    power: float = Field(0.5, gt=0, le=1, description="of `inverse_scaling`")

    def factor(self, step: int) -> float:
        """What the rate of a step is multiplied by. Args: step: from 1.

        >>> LearningRateRule(rule="inverse_scaling").factor(4)
        0.5
        """
        return 1.0 if self.rule == "constant" else float(step**-self.power)


class OnlineConfig(Section):
    """Proactive training (Continuous Training of Machine Learning Pipelines, section 4): once there is a model, it takes single steps on new samples
    mixed with some of the history, in place of whole retrainings.

    Each time that `online.trigger` fires, the steps over the samples since the last trigger are made, and end in a model version: what is
    journalled, and gone on from after a crash. What `trigger` fires for is trained as without this section.
    """

    trigger: dict[str, Any] = Field(
        description="when to take the steps that are due; a policy as in `trigger`, which looks at the newest model",
        examples=[{"id": "DataAmountTrigger", "num_samples": 5120}],
    )
    step_samples: int = Field(
        ge=1,
        description="new samples in a step (the paper's max_buffer_size), or with `update_samples` between two steps; the last step before a "
        "version may have fewer",
    )
    update_samples: int | None = Field(
        None,
        ge=1,
        description="new samples in an online update: each is learned from at once, in batches of so many, and steps learn from drawn samples "
        "alone, the newest among them; none = steps learn from new and drawn samples together",
        examples=[16],
    )
    history_samples: int = Field(
        0,
        ge=0,
        description="samples of the stream before a step's new ones that are drawn into it, or with `update_samples` before the step; 0: online "
        "updates alone",
    )
    history: dict[str, Any] = Field(
        default_factory=lambda: {"strategy": "Uniform"},
        description="how they are drawn; chosen by `strategy`",
        examples=[{"strategy": "TimeWeighted", "half_life": "30d"}],
    )
    statistics: bool = Field(
        True,
        description="whether the new samples of a step update the statistics of `preprocessing` before the step is transformed; false: steps are "
        "transformed by those of the last training that `trigger` asked for",
    )
    learning_rate: LearningRateRule = Field(
        default_factory=LearningRateRule, description="how learning rates change over the stream"
    )

    @model_validator(mode="after")
    def _updates_beside_steps(self) -> Self:
        if self.update_samples is None:
            return self
        if not self.history_samples:
            why = "stands beside steps that draw, and history_samples is 0: leave it out, and write its value as step_samples"
            raise PlacedError("update_samples", why)
        if self.update_samples > self.step_samples:
            why = f"an update is made before the step, which comes after step_samples: write at most {self.step_samples}"
            raise PlacedError("update_samples", why)
        return self

    @property
    def batch_size(self) -> int:
        """Samples of a whole step, with those of the online updates before it."""
        return self.step_samples + self.history_samples
