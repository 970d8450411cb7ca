"""The result of a training: one record from the worker to the journal, the model and the reports. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Self

from pydantic import Field, ValidationError

from modyn.cache.served_counts import ServedCounts
from modyn.errors import CorruptStateError
from modyn.json_codec import JsonRecord, adapter

_FLAT: Final = ("counts", "losses", "cache")
"""Parts whose fields are at the top level of the result's mapping."""
_ALWAYS_WRITTEN: Final = ("epoch_losses", "losses")


@dataclass(frozen=True, slots=True)
class TrainingCounts:
    """Counts of a training over all epochs and attempts."""

    num_samples: int = 0
    """Number of samples trained on."""
    num_skipped: int = 0
    """Number of samples left out because they were deleted after the selection or are bad, counted in each epoch."""
    num_batches: int = 0
    num_steps: int = 0
    """Number of steps of the optimizers."""
    skipped_steps: int = 0
    """Number of steps that changed no weight."""
    num_epochs: int = 0
    num_keys: int = 0
    """Number of samples in the trigger set."""
    ignored_labels: int | None = None
    """Number of labels that the loss ignored, out of `num_labels`; None if the loss ignored no label."""
    num_labels: int | None = None
    num_tested: int | None = None
    """Number of new samples, if the training only tested them."""


@dataclass(frozen=True, slots=True)
class TrainingLosses:
    """Mean losses of epochs, and the losses of some batches."""

    loss: float | None = None
    """Mean loss of the last epoch, or None if no epoch ended."""
    epoch_losses: tuple[float, ...] = ()
    validation_losses: tuple[float, ...] = ()
    """Mean losses of the validation set, by epoch."""
    batch_losses: Annotated[tuple[tuple[int, float], ...], Field(alias="losses")] = ()
    """Pairs of batch number (from 1) and loss."""


@dataclass(frozen=True, slots=True)
class CacheResult:
    """Effects of the cache on a training."""

    num_cached: Mapping[str, int]
    """Number of samples by tier."""
    cache_work: Mapping[str, int] = field(default_factory=dict)
    """The fields of `CacheWork`, which count work done only for the cache."""
    cache_saved_s: float | None = None
    """Estimated seconds of preparation that the cache saved; negative: the cache cost more."""


@dataclass(frozen=True, slots=True)
class BadSampleNote:
    """A sample that could not be decoded."""

    key: int
    place: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ClassShares:
    """Shares by class before and after downsampling. The two mappings are empty if labels are not classes; `before` is also empty if no labels were
    read."""

    before: Mapping[str, float] = field(default_factory=dict)
    after: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DownsamplingResult:
    """The choices of downsampling in a training."""

    strategy: str = ""
    mode: str = ""
    """sample_then_batch or batch_then_sample."""
    transforms_labels: bool = False
    """Whether the classes differ from the labels in the selector."""
    num_candidates: int = 0
    num_chosen: int = 0
    num_selections: int = 0
    class_shares: ClassShares = ClassShares()
    weight_quantiles: Mapping[str, float] = field(default_factory=dict)
    """Quantiles of the weights, with levels as text, such as 0.05. The mapping is empty if the policy gives no weights."""
    largest_weight: float | None = None
    effective_samples: float | None = None
    """Effective number of samples, (Σ w)² / Σ w² (Kish, 1965)."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the stages `score` and `choose`."""
    effective_epochs: float | None = None


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """Samples that were tested together."""

    num: int
    total: float
    """Sum of the errors or of the losses of these samples."""


def mean_error(rows: Sequence[ErrorRow]) -> float:
    """Return the mean over all samples of the rows. There must be at least one sample."""
    return sum(row.total for row in rows) / sum(row.num for row in rows)


@dataclass(frozen=True, slots=True)
class PrequentialResult:
    """Tests of new samples, in order: an entry for each step, or for several consecutive steps."""

    first_step: int = 1
    """Number of the first step, counted from 1 after the last retraining."""
    num: tuple[int, ...] = ()
    loss: tuple[float, ...] = ()
    """Sum of losses in each entry."""
    errors: tuple[int, ...] | None = None
    """Number of wrongly classified samples in each entry, or None if labels are not classes."""

    @property
    def measure(self) -> str:
        """Name of the measure that `rows` sums: `error` if errors are known, otherwise `loss`."""
        return "loss" if self.errors is None else "error"

    @property
    def rows(self) -> list[ErrorRow]:
        """The entries whose sum is finite."""
        sums = self.loss if self.errors is None else self.errors
        return [ErrorRow(num, total) for num, total in zip(self.num, sums, strict=True) if abs(total) < float("inf")]


@dataclass(frozen=True, slots=True)
class Rollback:
    """A return to a snapshot after a jump of the error. Losses are means over samples."""

    step: int
    """Number of the step after which the jump was found, counted from 1 after the last retraining."""
    to_step: int
    """The step whose weights were restored."""
    running: float = 0.0
    """Mean loss before the jump, or 0 if this loss is not known."""
    loss: float = 0.0
    """Mean loss of the new samples since the snapshot."""
    alone: bool = False
    """Whether a single risky step was checked."""
    newest_loss: float | None = None
    """Mean loss of the newest batch."""
    compared_loss: float | None = None
    """Mean loss of the compared samples with the current weights."""
    snapshot_loss: float | None = None
    """Mean loss of the compared samples with the weights of the snapshot."""


@dataclass(frozen=True, slots=True)
class GuardResult:
    """The actions of `StepGuard`, and the state from which the guard of the next steps resumes."""

    snapshots: int = 0
    data_jumps: int = 0
    """Number of jumps of the error with the data as cause: the snapshot's error jumps too, or outliers cause the jump."""
    rollbacks: tuple[Rollback, ...] = ()
    left_out: bool = False
    """Whether the steps made no version."""
    running: Mapping[str, float] | None = None
    """State of the running mean, or None if the mean has no samples."""
    ranges: Mapping[str, Any] | None = None
    """State of the ranges of tensors."""


@dataclass(frozen=True, slots=True)
class ColumnInputs:
    """The InputGuard's findings on one column."""

    rows: int
    missing: float
    """Share of rows without a value."""
    unlike: float
    """Share of the values outside of the range, or the categories, of all earlier rows."""


@dataclass(frozen=True, slots=True)
class PreprocessingResult:
    """The statistics of the preprocessing after a training, and unusual inputs."""

    rows: int = 0
    """Number of rows in the statistics."""
    dense_features: int = 0
    sparse_features: int = 0
    over_bound: Mapping[str, Mapping[str, float]] | None = None
    """Share of values that a full vocabulary does not contain, by component and column, or None if no vocabulary is full."""
    inputs: Mapping[str, ColumnInputs] | None = None
    """Findings by column, or None if the training has no InputGuard."""
    unusual: tuple[str, ...] | None = None
    """A description of each unusual column, as part of a sentence."""


@dataclass(frozen=True, slots=True)
class FeedbackResult:
    """Scores of samples that the training kept for the selector."""

    scores: Mapping[str, int]
    """Number of values in each score, by name."""
    num_rows: int
    crc32: int
    """CRC-32 of the file of scores."""
    attempt: int
    """Time of the attempt, in microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class TrainingResult(JsonRecord):
    """The result of a training. The default is the result of a training that has not ended."""

    counts: TrainingCounts = TrainingCounts()
    losses: TrainingLosses = TrainingLosses()
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds by stage, including earlier attempts of a resumed training. The mapping is empty without measurements."""
    device: str = ""
    nothing_trained: str = ""
    """Reason why a training without error made no model. The reason is empty if the training made a model."""
    warnings: tuple[str, ...] = ()
    """Warnings, one sentence each."""
    bad_samples: tuple[BadSampleNote, ...] = ()
    """The first hundred bad samples."""
    optimizer_state_not_kept: str = ""
    """Reason why the optimizers' states are not stored with the model, although requested."""
    cache: CacheResult | None = None
    downsampling: DownsamplingResult | None = None
    preprocessing: PreprocessingResult | None = None
    prequential: PrequentialResult | None = None
    step_guard: GuardResult | None = None
    feedback: FeedbackResult | None = None

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Self:
        """Read a result of `to_mapping` from the journal or a model. Unknown keys are ignored. Raises: CorruptStateError."""
        if not mapping:
            return cls()
        flat = {name: mapping for name in _FLAT if name != "cache" or "num_cached" in mapping}
        try:
            result: Self = adapter(cls).validate_python({**mapping, **flat})
        except ValidationError as error:
            raise CorruptStateError(f"the stored result of a training cannot be read: {error}") from error
        return result

    def to_mapping(self) -> dict[str, Any]:
        """Write the record as JSON data. Fields that are None or empty are left out, except losses.

        >>> TrainingResult(TrainingCounts(num_samples=8, num_steps=2), nothing_trained="no whole batch").to_mapping()["num_samples"]
        8
        """
        if not self.has_ended:
            return {}
        written: dict[str, Any] = adapter(TrainingResult).dump_python(self, mode="json", by_alias=True, exclude_none=True)
        counts, losses, cache = (written.pop(name, {}) for name in _FLAT)
        everything = {**counts, "loss": None, **losses, **cache, **written}
        return {name: value for name, value in everything.items() if value not in ("", [], {}) or name in _ALWAYS_WRITTEN}

    @property
    def has_ended(self) -> bool:
        """Whether this is the result of a training that has ended."""
        return self != NO_RESULT

    @property
    def num_loaded(self) -> int:
        """Number of samples that were loaded: all candidates, if downsampling chose within batches."""
        if self.downsampling is not None and self.downsampling.mode == "batch_then_sample":
            return self.downsampling.num_candidates
        return self.counts.num_samples

    @property
    def batches_s(self) -> float | None:
        """Seconds spent on batches: all stages except storing the model. None without measurements.

        >>> TrainingResult(seconds={"load": 0.5, "forward": 1.0, "store": 0.25}).batches_s, TrainingResult().batches_s
        (1.5, None)
        """
        stages = [seconds for stage, seconds in self.seconds.items() if stage != "store"]
        return sum(stages) if stages else None

    @property
    def rollbacks(self) -> tuple[Rollback, ...]:
        """The rollbacks of online steps to a snapshot."""
        return () if self.step_guard is None else self.step_guard.rollbacks

    @property
    def served_counts(self) -> ServedCounts | None:
        """Sources of the samples, or None if the training had no cache."""
        cache = self.cache
        return None if cache is None else ServedCounts.of(self.num_loaded, cache.num_cached, cache.cache_work)

    @property
    def stream_steps(self) -> int:
        """Number of steps that the model has made since the last retraining.

        >>> TrainingResult(TrainingCounts(num_steps=7), prequential=PrequentialResult(first_step=11)).stream_steps
        17
        """
        return 0 if self.prequential is None else self.prequential.first_step - 1 + self.counts.num_steps

    def with_seconds(self, stage: str, seconds: float) -> Self:
        """Return the result with the seconds of a further stage."""
        return replace(self, seconds={**self.seconds, stage: seconds})


NO_RESULT: Final = TrainingResult()
"""The result of a training that has not ended."""
