"""The section `online`: proactive training, between the trainings that `trigger` asks for. Each service reads the part that it acts on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from modyn.config.base import PlacedError, Section, load_section

ONLINE: Final = "online"
"""Name of the section."""
TESTS_ONLY: Final[Mapping[str, Any]] = {"history_samples": 0, "update_samples": None}
"""What holds in the section for samples that are only tested: nothing is drawn."""


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


class ConvergenceConfig(Section):
    """When steps pause and start again. The error is the share that was classified wrongly, and the loss where labels are no classes.

    Steps pause where the mean error of the newest `window` samples differs from that of the `window` before by at most `tolerance` of the latter.
    While they pause, new samples are only tested, by the newest version; steps start again where a Page-Hinkley test finds that the error rises
    (Page 1954). It takes the mean error of each row of samples that were tested together in standard deviations from the mean of the `window` before
    the pause, so that its options need no scale.
    """

    window: int = Field(10_000, ge=2, description="new samples, that have been tested since steps began or began again")
    tolerance: float = Field(0.05, ge=0, description="share of the error by which it may differ and still counts as flat")
    rise: float = Field(0.5, ge=0, description="rise of the error that does not count, in standard deviations: the test's delta")
    threshold: float = Field(10.0, gt=0, description="sum of rises beyond `rise` from which steps start again: the test's lambda")


class RollbackConfig(Section):
    """Snapshots of weights, optimizers and statistics within a stretch of steps, and when it goes back to one.

    After each `every` steps, before and behind a risky one, and at the end, the steps since the snapshot are checked: the error jumps if their mean
    loss, or that of the newest one under the new weights, is above `factor` times the faded mean of the steps before, or no number. Then the
    snapshot, with its own statistics of preprocessing, is asked about the newest samples, without outliers (at most a quarter of them, on which
    its loss is above 100 times the faded mean): where it errs as much, or its loss is at least half-way from the faded mean to theirs, the jump is
    one of the data, and the steps count as good. Otherwise the stretch goes on from the snapshot, behind the samples that were stepped on; at the
    second time it is left out: the rest of its samples is only tested, by the version before, with which the run goes on. A step is risky if one
    of its numbers lies outside of the range before by more than its width: of a column, where an InputGuard stands in front of `preprocessing`; of
    an input without that section, once the stretches since the last retraining had 1,000 samples (on a GPU each step then waits for the one before).
    """

    every: int = Field(32, ge=1, description="steps between two snapshots; each is a copy in the memory of the device")
    factor: float = Field(2.0, gt=1, description="times the faded mean loss of the steps before, from which a loss is a jump")
    window: int = Field(1000, ge=1, description="samples after which one counts 1/e in the faded mean")


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
    max_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of the time that steps take at most, whatever the policy says: after a stretch of T seconds, selection and storing "
        "included, T * (1 / max_share - 1) seconds pass before the next one; in an experiment of the stream's time. 1: no bound",
        examples=[0.25],
    )
    max_samples: int | None = Field(
        None,
        ge=1,
        description="new samples of a stretch; further ones wait until the policy fires again, so that it is asked again before them; none: all that "
        "wait are taken",
        examples=[10240],
    )
    step_samples: int = Field(
        ge=1,
        le=1_000_000,
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
        le=1_000_000,
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

    convergence: ConvergenceConfig | None = Field(
        None, description="pause the steps while the prequential error is flat; none: they never pause", examples=[{}]
    )
    rollback: RollbackConfig | None = Field(
        None, description="go back to a snapshot when the error jumps; none: never", examples=[{}]
    )

    @model_validator(mode="after")
    def _whole_steps(self) -> Self:
        if self.max_samples is not None and self.max_samples < self.step_samples:
            raise PlacedError("max_samples", f"is less than a step has: write at least step_samples, {self.step_samples}")
        return self

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


def load_online(section: Mapping[str, Any] | None) -> OnlineConfig | None:
    """The section of a pipeline; None: it has none. Raises ConfigError."""
    return load_section(OnlineConfig, section, ONLINE) if section else None
