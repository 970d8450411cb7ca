"""Base class of trigger policies. A policy reads the stream and decides after which samples to train.

A policy is evaluated per batch, but decides at the same positions for every division of the stream into batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator

from modyn.config.base import Matching, Problem, Section, check_section
from modyn.errors import CorruptStateError, UserCodeError
from modyn.evaluator.client import DriftQuestion
from modyn.json_codec import JsonRecord
from modyn.records import SampleBatch
from modyn.supervisor.evidence import Evidence, column_names, columns_of
from modyn.supervisor.triggers.measures.questions import NO_EVIDENCE, EvidenceSource

SeriesName = Annotated[
    str,
    Matching(
        r"^[A-Za-z0-9]([\w.-]*[\w-])?$",
        "a name begins with a letter or digit, has letters, digits, _, - and . after it, and does not end with a dot",
    ),
]
"""Name of a metric, a criterion or a subtrigger, chosen by the user, such as `static-0.8`."""


@dataclass(frozen=True, slots=True)
class TriggerContext:
    """Facts about a run that a policy may use in addition to the stream."""

    seed: int | None = None
    """The value of `training.seed`. A policy that draws random numbers seeds its generator with this value. None: the run need not be repeatable."""
    online: bool = False
    """Whether the policy is `online.trigger`, which fires steps of proactive training."""
    label_delay: int = 0
    """Seconds of stream time between a sample and its label: `data.label_delay`."""


@dataclass(frozen=True, slots=True)
class CheckContext:
    """Facts that a policy may use in a check."""

    position: int
    """Number of samples of the stream before the check, at least 1."""
    num_pending: int
    """Number of samples whose labels have arrived since the last trigger. If the selection uses only new samples, a trigger here trains on them."""
    source: EvidenceSource = NO_EVIDENCE
    """Answers questions about the samples before the check."""


@dataclass(frozen=True, slots=True)
class Check:
    """A verdict, and the numbers that led to it."""

    fires: bool
    evidence: Sequence[Evidence] = ()
    """One record for each number (distance, vote, count), journalled with the verdict. Without records, the verdict depends only on positions,
    timestamps and labels. The journal does not store a verdict without records, and a resumed run computes the verdict again.
    """
    memory: Mapping[str, Any] = field(default_factory=dict)
    """Further JSON values that `checked` needs. The journal stores these values with the evidence, but users do not see these values."""

    def __post_init__(self) -> None:
        if type(self.fires) is not bool or not all(isinstance(one, Evidence) for one in self.evidence):
            raise UserCodeError(f"{self} is not a verdict: `fires` must be a bool, `evidence` a sequence of `Evidence`")


@dataclass(frozen=True, slots=True)
class CheckRecord(JsonRecord):
    """A completed check. The journal stores checks with evidence, and a resumed run replays these checks."""

    position: int
    """Number of samples of the stream before the check."""
    fires: bool
    evidence: Annotated[Sequence[Evidence], AfterValidator(tuple)] = ()
    seconds: float = 0.0
    """Seconds that the policy took for the check."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """See `Check`."""
    timestamp: int | None = None
    """Stream time of the check: the largest timestamp before the check."""
    online: bool = False
    """Whether `online.trigger` made the check, and not `trigger`."""

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers of the check's evidence, by their names in tables.

        >>> CheckRecord(500, False, (Evidence("mmd", 0.2, threshold=0.3, unusual=False),)).numbers
        {'mmd': 0.2, 'mmd.threshold': 0.3, 'mmd.unusual': 0.0}
        """
        found = columns_of(self.evidence)
        return dict(zip(column_names(found).values(), found.values(), strict=True))


@dataclass(frozen=True, slots=True)
class TriggerOutcome:
    """The facts about a trigger so far, as journalled. `model_id` and the fields below it are known after the model is stored."""

    trigger_id: int
    position: int
    """Number of samples of the stream before the trigger."""
    first_timestamp: int
    last_timestamp: int
    """Smallest and largest timestamp of the samples whose labels have arrived since the last trigger."""
    num_new: int | None = None
    """Number of samples whose labels have arrived since the last trigger; None if the number is not known."""
    model_id: int | None = None
    num_keys: int | None = None
    """Number of samples of the trigger set."""
    num_trained: int | None = None
    """Number of samples trained on. The trainer counts samples after downsampling, and again in each epoch."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of work by stage: select, train, store, total."""
    batches_s: float | None = None
    """Seconds of `train` in which batches were made and trained on; None if the seconds are not known."""
    forward_s: float | None = None
    """Seconds of `batches_s` that the model's passes over `num_trained` samples took; None if the seconds are not known."""
    finished_at: float | None = None
    """Time at which the model was stored, in seconds since 1970, or None while the model is not stored."""
    online: bool = False
    """Whether the trigger made steps of proactive training."""


class Trigger(ABC):
    """A trigger policy, built from its `Config` once per run.

    The methods `next_check`, `questions` and `check` do not change the policy. The methods `observe`, `checked`, `triggered` and `ended` report
    events and may change the policy's state. For each position at which the policy decides, the calls are, in this order: `next_check`, `observe`
    with the samples before the position, `questions` (in simulations), `check`, `checked`. If the policy fires, `triggered` and `ended` follow;
    `ended` calls `trained` if a model was made.

    An `online.trigger` also receives triggers and models of `trigger`, between its checks. The position of the next decision of an `online.trigger`
    must not depend on these triggers and models.

    Decisions depend only on the configuration, the context, the samples and these events, and not on a clock or a global random generator. An
    experiment therefore decides like production. A resumed run takes verdicts with evidence from the journal instead of `check`, so that even an
    unreproducible verdict stays the same.
    """

    Config: ClassVar[type[Section]]
    """Options of the policy: the keys of the `trigger` section except `id`."""
    weighs_seconds: ClassVar[bool] = False
    """Whether the policy decides by the seconds that trainings take. A simulation of such a policy needs these seconds."""
    late_span_s: int = 86_400
    """Seconds of stream time. The run warns if all samples after the sample with the newest timestamp are older, and span at least this time."""

    def __init__(self, config: Section, context: TriggerContext | None = None) -> None:
        self.context = context or TriggerContext()

    @property
    def label_delay(self) -> int:
        """Seconds of stream time between a sample and its label, from the pipeline or from the policy's own option."""
        return self.context.label_delay

    @property
    def sees_next_sample(self) -> bool:
        """Whether the policy needs the sample after a position to decide there. If so, the policy decides about the end of a batch when it has the
        next batch.
        """
        return False

    @classmethod
    def problems(cls, options: Mapping[str, Any], path: str) -> list[Problem]:
        """Find every mistake in the options of this policy. A policy with inner policies also finds the mistakes in the sections of its inner
        policies, each at its own path.

        Args: options: the `trigger` section without `id`. path: path of the section in the file.
        """
        return check_section(cls.Config, options, path)

    @classmethod
    def samples_per_trigger(cls, config: Any) -> int | None:
        """Return the number of labels that arrive from one trigger to the next, if the options alone decide this number; otherwise None.

        `modyn check` compares the number with the batch size.
        """
        return None

    @abstractmethod
    def next_check(self, batch: SampleBatch, start: int) -> int | None:
        """Return the first position after `start` at which the policy decides; None if the batch has no such position. Calls no service and changes
        nothing.

        Position c of a batch is after the first c samples of the batch, 0 <= c <= len(batch).

        Args: batch: samples of the stream, of which the policy has observed the samples before `start`. start: the newest position at which the
        policy has decided. If this position is before the batch, `start` is -1, and 0 may be returned. For the first batch of a stream, `start` is
        0, because nothing is decided before the first sample.
        """

    def questions(self, context: CheckContext) -> Sequence[DriftQuestion]:
        """Return the questions about drift that `check` will ask at this position. Changes nothing.

        A simulation asks the questions of many policies in one call. If a policy returns no questions here, `check` asks its questions one by one.
        """
        return ()

    def check(self, context: CheckContext) -> Check:
        """Decide at the position that `next_check` returned. The policy has observed all samples before this position. Changes nothing.

        By default every check fires, so that `next_check` alone defines the policy.
        """
        return Check(fires=True)

    def observe(self, samples: SampleBatch) -> None:  # noqa: B027 - for policies that count
        """Receive the next samples of the stream, or an empty batch. `samples.labelled` are the samples whose labels arrive with these samples."""

    def checked(self, record: CheckRecord) -> None:  # noqa: B027
        """Receive the verdict at this position, which was just made or is replayed from the journal."""

    def triggered(self, outcome: TriggerOutcome) -> None:  # noqa: B027
        """Receive the trigger that the last check has fired, before the selector selects the trigger set."""

    def ended(self, outcome: TriggerOutcome) -> None:
        """Receive the end of a trigger. By default this method calls `trained` if the trigger has made a model."""
        if outcome.model_id is not None:
            self.trained(outcome)

    def trained(self, outcome: TriggerOutcome) -> None:  # noqa: B027
        """Receive the trigger that has produced a model. Called once per model, in order."""

    def warning(self) -> str | None:
        """Return a warning for the user if something keeps the policy from firing although samples arrive, or None. Changes nothing."""
        return None

    def end_warning(self) -> str:
        """Return a clause for the end of the stream: what the policy lacked to fire as intended; empty if nothing. Changes nothing."""
        return ""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the state between batches that survives a restart, as small JSON with a `version`."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `state()`. Raises CorruptStateError: `state` is not a state of this policy that this version can read."""


def next_position(policy: Trigger, batch: SampleBatch, start: int) -> int | None:
    """Return the result of `policy.next_check`. Raises UserCodeError if the result is not a position after `start` within the batch."""
    at = policy.next_check(batch, start)
    if at is not None and not (type(at) is int and start < at <= len(batch)):
        raise UserCodeError(
            f"trigger {type(policy).__name__} wants to check at position {at!r} of a batch of {len(batch)} samples, after {start}: "
            "positions are int, ascend, and are within the batch; correct its `next_check`"
        )
    return at


class DueChecks:
    """The positions of one batch at which a policy decides, in order.

    The object calls `next_check` after the policy has decided at the last position. The policy may have observed samples after this position.

    Args: start: the newest position at which the policy has decided; less than 0 if this position is before the batch.
    """

    def __init__(self, batch: SampleBatch, policy: Trigger, start: int) -> None:
        self._batch, self._policy = batch, policy
        self.at = next_position(policy, batch, max(start, -1))
        """The next position; None if the batch has no further position."""

    def go_on(self) -> None:
        """Find the next position, once the policy has decided at `at`."""
        if self.at is not None:
            self.at = next_position(self._policy, self._batch, self.at)

    def before(self, other: DueChecks) -> bool:
        """Return whether this policy decides before `other`.

        At equal positions, a policy that does not need the next sample is first, because it can decide at the end of a batch; otherwise `other` is
        first. Therefore, the order does not depend on the division into batches.
        """
        if self.at is None or other.at is None:
            return self.at is not None
        return (self.at, self._policy.sees_next_sample) < (other.at, other._policy.sees_next_sample)


def next_due(policies: Sequence[Trigger], batch: SampleBatch, start: int) -> tuple[int | None, tuple[bool, ...], bool]:
    """Return the first position after `start` at which any policy decides; for each policy, whether it decides there; and whether a decision about
    the end of the batch must wait for the next sample.

    If one policy needs the next sample, all policies decide about the end of a batch with the next batch. All policies therefore decide together for
    every division of the stream into batches.
    """
    found = [next_position(policy, batch, start) for policy in policies]
    last = len(batch) - any(policy.sees_next_sample for policy in policies)
    at = min((position for position in found if position is not None and position <= last), default=None)
    is_left = at is None and last < len(batch) and len(batch) in found
    return at, tuple(at is not None and position == at for position in found), is_left


def read_state(policy: str, state: Mapping[str, Any], version: int, fields: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    """Return the `fields` of `state`, checked by name and type. Raises CorruptStateError if version, names or types differ.

    Args: policy: name of the policy, for messages. fields: name → allowed types of the value, subclasses excluded.

    >>> read_state("Every10", {"version": 1, "pending": 3}, 1, {"pending": (int,)})
    {'pending': 3}
    """
    if state.get("version") != version:
        raise CorruptStateError(
            f"the saved state of {policy} has version {state.get('version')!r}, this release reads version {version}; "
            "resume the run with the release that started it"
        )
    values = {name: value for name, value in state.items() if name != "version"}
    # `isinstance` would accept True as an int.
    wrong = [name for name, types in fields.items() if name in values and type(values[name]) not in types]
    if values.keys() != fields.keys() or wrong:
        raise CorruptStateError(f"the saved state of {policy} is not readable: expected {sorted(fields)}, found {dict(state)}")
    return values
