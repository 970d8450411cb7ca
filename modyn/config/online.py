"""Section `online`: proactive training between the trainings that `trigger` starts. Each service reads its own part of the section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from modyn.config.base import PlacedError, Section, load_section

ONLINE: Final = "online"
"""Name of the section."""
TESTS_ONLY: Final[Mapping[str, Any]] = {"history_samples": 0, "update_samples": None}
"""Replacements for values of the section, for samples that are only tested. With these values, no samples are drawn from the history."""


class LearningRateRule(Section):
    """Change of the learning rates of `training.optimizers` over the stream. Adaptive optimizers (Adagrad, Adam) need no rule."""

    rule: Literal["constant", "inverse_scaling"] = Field(
        "constant",
        description="`inverse_scaling`: step t of the stream has the rate lr / t^power; t starts at 1 after each training of `trigger`",
    )
    power: float = Field(0.5, gt=0, le=1, description="exponent of `inverse_scaling`")

    def factor(self, step: int) -> float:
        """Return the factor for the learning rate of a step. Args: step: number of the step, from 1.

        >>> LearningRateRule(rule="inverse_scaling").factor(4)
        0.5
        """
        return 1.0 if self.rule == "constant" else float(step**-self.power)


class ConvergenceConfig(Section):
    """Rule that pauses the steps and starts the steps again. The error is the share of wrong classes, or the loss if labels are not classes.

    Steps pause when the mean error of the newest `window` samples differs from the mean error of the previous `window` samples by at most the share
    `tolerance`. During a pause, the newest version only tests new samples. Steps start again when a Page-Hinkley test (Page 1954) finds that the
    error rises. The test's input is the mean error of each group of samples that were tested together, in standard deviations from the mean of the
    last `window` samples before the pause. So the options do not depend on the scale of the error.
    """

    window: int = Field(
        10_000,
        ge=2,
        description="number of newest tested samples whose error is compared with that of the same number before; only samples since the steps last "
        "began count",
    )
    tolerance: float = Field(0.05, ge=0, description="largest relative difference of the error that counts as flat")
    rise: float = Field(0.5, ge=0, description="rise of the error that does not count, in standard deviations (the test's delta)")
    threshold: float = Field(10.0, gt=0, description="sum of rises beyond `rise` at which steps start again (the test's lambda)")


class RollbackConfig(Section):
    """Snapshots of weights, optimizers and statistics within a batch of steps, and the rule for a rollback to a snapshot.

    The steps since the snapshot are checked after `every` steps, before and after a risky step, and at the end. The error jumps if a loss is not
    finite, or exceeds `factor` times the exponential mean of earlier steps. Two losses count: the mean loss of these steps, and the loss of the
    newest step under the new weights. After a jump, the snapshot (with its own statistics of preprocessing) and the present model are tested on
    the newest samples. Outliers are left out: at most a quarter of these samples, with a loss above 100 times the mean. The data has changed, and
    the steps are kept, if the snapshot's loss is at least the present model's loss, or at least half-way from the mean to the present model's
    loss. Otherwise training continues from the snapshot with the next samples. After the second rollback, the previous version only tests the
    remaining samples, and the run continues with this version.

    A step is risky if a number in its samples is outside of the earlier range by more than the width of the range. Columns have ranges if
    `preprocessing` has an InputGuard; inputs have ranges if there is no section `preprocessing`. Ranges are used after 1,000 samples of steps since
    the last retraining (on a GPU, each step then waits for the previous step).
    """

    every: int = Field(32, ge=1, description="number of steps between two snapshots; each is a copy in the memory of the device")
    factor: float = Field(
        2.0, gt=1, description="a loss above this factor times the exponential mean of the earlier steps is a jump"
    )
    window: int = Field(1000, ge=1, description="number of samples after which a sample's weight in the exponential mean is 1/e")


class OnlineConfig(Section):
    """Proactive training (Continuous Training of Machine Learning Pipelines, section 4): the present model takes single steps on new samples, mixed
    with earlier samples, instead of whole retrainings.

    When `online.trigger` fires, steps are made on the samples since the last trigger. The steps end in a model version. After a crash, the run
    resumes from this version. This section does not change the trainings of `trigger`.
    """

    trigger: dict[str, Any] = Field(
        description="when to take the steps that are due: a policy like those of `trigger`, which uses the newest model",
        examples=[{"id": "DataAmountTrigger", "num_samples": 5120}],
    )
    max_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="largest share of the time that steps take, for any policy: after steps of T seconds, including selection and storing, T * "
        "(1 / max_share - 1) seconds must pass before the next steps; in an experiment, seconds of the stream's time. 1: no bound",
        examples=[0.25],
    )
    max_samples: int | None = Field(
        None,
        ge=1,
        description="largest number of new samples for one firing of the policy; further samples wait until it fires again; none: all waiting "
        "samples are used",
        examples=[10240],
    )
    step_samples: int = Field(
        ge=1,
        le=1_000_000,
        description="number of new samples in a step (the paper's max_buffer_size), or with `update_samples`, between two steps; the last step "
        "before a version may have fewer",
    )
    update_samples: int | None = Field(
        None,
        ge=1,
        description="number of new samples in an online update: the model learns from new samples immediately, in batches of this size, and "
        "steps use only drawn samples, which include the newest; none = steps use new and drawn samples together",
        examples=[16],
    )
    history_samples: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="number of earlier samples that are drawn for a step; with `update_samples`, they are drawn from all samples before the step; "
        "0: online updates only",
    )
    history: dict[str, Any] = Field(
        default_factory=lambda: {"strategy": "Uniform"},
        description="how earlier samples are drawn; `strategy` names the policy",
        examples=[{"strategy": "TimeWeighted", "half_life": "30d"}],
    )
    statistics: bool = Field(
        True,
        description="whether the new samples of a step update the statistics of `preprocessing` before the step; if false, steps use the "
        "statistics of the last training of `trigger`",
    )
    learning_rate: LearningRateRule = Field(
        default_factory=LearningRateRule, description="change of the learning rates over the stream"
    )

    convergence: ConvergenceConfig | None = Field(
        None, description="pause steps while the prequential error is flat; none: steps never pause", examples=[{}]
    )
    rollback: RollbackConfig | None = Field(
        None, description="return to a snapshot when the error jumps; none: never", examples=[{}]
    )

    @model_validator(mode="after")
    def _whole_steps(self) -> Self:
        if self.max_samples is not None and self.max_samples < self.step_samples:
            raise PlacedError(
                "max_samples", f"is less than the samples of one step: write at least step_samples, {self.step_samples}"
            )
        return self

    @model_validator(mode="after")
    def _check_updates(self) -> Self:
        if self.update_samples is None:
            return self
        if not self.history_samples:
            why = "is given for steps that draw samples, but history_samples is 0: leave it out, and write its value as step_samples"
            raise PlacedError("update_samples", why)
        if self.update_samples > self.step_samples:
            why = f"an update is made before each step, and a step is made every step_samples: write at most {self.step_samples}"
            raise PlacedError("update_samples", why)
        return self

    @property
    def batch_size(self) -> int:
        """Return the number of samples of a whole step, including the samples of its online updates."""
        return self.step_samples + self.history_samples


def load_online(section: Mapping[str, Any] | None) -> OnlineConfig | None:
    """Return the section `online` of a pipeline; None: the pipeline has no such section. Raises ConfigError."""
    return load_section(OnlineConfig, section, ONLINE) if section else None
