"""What a trigger policy is: it looks at the stream and says between which two samples to train.

Semantics are per sample, evaluation is per batch: however a stream is cut into batches, a policy decides at the same positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final

from pydantic import AfterValidator

from modyn.config.base import Matching, Problem, Section, check_section
from modyn.errors import CorruptStateError, UserCodeError
from modyn.records import SampleBatch
from modyn.supervisor.triggers.evidence import NO_EVIDENCE, EvidenceSource

_RESERVED: Final = frozenset(
    {
        "unusual",
        "unusual_in_a_row",
        "paused",
        "warming_up",
        "first_trigger",
        "cooling_down",
        "detections",
        "detected_before",
        "calibration",
    }
)
_DETAILS: Final = frozenset({"threshold", "unusual", "p_value", "seconds", "vote", "so_far", "expected_accuracy"})
"""What may stand behind the last dot of a name of evidence: the series itself has none of them."""


def _without_detail(name: str) -> str:
    """Return a name that is read back whole from evidence. Raises ValueError: what follows its last dot is that of a detail."""
    if (detail := name.rpartition(".")[2]) in _DETAILS and detail != name:
        raise ValueError(f"'{name}' ends like other evidence of a check; choose another end than '.{detail}'")
    return name


SeriesName = Annotated[
    str,
    Matching(
        r"^[A-Za-z0-9]([\w.-]*[\w-])?$",
        "a name begins with a letter or digit, has letters, digits, _, - and . after it, and does not end with a dot",
    ),
    AfterValidator(_without_detail),
]
"""What a user calls a metric or a subtrigger, such as `static-0.8`: the name of its series of evidence."""


def unreserved(name: str) -> str:
    """Return the name of a series. Raises ValueError: policies write other evidence of a check under it.

    >>> unreserved("mmd")
    'mmd'
    """
    first, _, details = name.partition(".")
    if first in _RESERVED or name.endswith("_samples") or details.rpartition(".")[2] in _DETAILS:
        raise ValueError(f"'{name}' is the name of other evidence of a check; choose another name")
    return name


OwnSeriesName = Annotated[SeriesName, AfterValidator(unreserved)]
"""A `SeriesName` whose evidence stands beside that of the policy itself, and must not have its names."""


@dataclass(frozen=True, slots=True)
class TriggerContext:
    """What a policy may know of its run, beside the stream."""

    seed: int | None = None
    """`training.seed`. A policy that draws at random derives its generator from it; none = not repeatable."""
    online: bool = False
    """Whether it is `online.trigger`: what it fires are the steps of proactive training."""
    label_delay: int = 0
    """How many seconds of stream time labels come after their samples, `data.label_delay`."""


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What a policy may know when it checks."""

    position: int
    """Samples of the stream before the check, at least 1."""
    num_pending: int
    """Samples whose labels have come since the last trigger: what it would train on if nothing but new samples were selected."""
    source: EvidenceSource = NO_EVIDENCE
    """Answers questions about the samples before the check."""


@dataclass(frozen=True, slots=True)
class Check:
    """A verdict, and the numbers that it was made from."""

    fires: bool
    evidence: Mapping[str, float] = field(default_factory=dict)
    """Named numbers (distance, threshold, votes), journalled with the verdict. Empty: the verdict is arithmetic of positions, timestamps and
    labels, needs no record and is repeated when a run is resumed. A series `name` is a value; `name.threshold` is what it was compared with,
    `name.unusual` 1 or 0. A test's is `name.p_value`, and `name.p_value.threshold` its level where that decided."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """What `checked` needs beside the evidence to go on from this check, as JSON: journalled with evidence, and not shown."""

    def __post_init__(self) -> None:
        if type(self.fires) is not bool or not all(
            isinstance(name, str) and isinstance(value, int | float) for name, value in self.evidence.items()
        ):
            raise UserCodeError(f"{self} is no verdict: `fires` must be a bool, `evidence` a mapping from names to numbers")


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """A check that was made. Those with evidence are journalled, and replayed when the run is resumed."""

    position: int
    """Samples of the stream before it."""
    fires: bool
    evidence: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    """How long the policy took."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """See `Check`."""
    timestamp: int | None = None
    """Stream time: the largest timestamp before it."""
    online: bool = False
    """Whether it is of `online.trigger`, and not of `trigger`."""


@dataclass(frozen=True, slots=True)
class TriggerOutcome:
    """A trigger of the run, as far as it has come: `model_id` and what follows it is known once the model is stored, as journalled."""

    trigger_id: int
    position: int
    """Samples of the stream before it."""
    first_timestamp: int
    last_timestamp: int
    """Smallest and largest timestamp of the samples whose labels have come since the last trigger."""
    num_new: int | None = None
    """How many these are; None: it is not known."""
    model_id: int | None = None
    num_keys: int | None = None
    """Samples of the trigger set."""
    num_trained: int | None = None
    """Samples trained on, as the trainer counted: after downsampling, each epoch."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of work by stage: select, train, store, total."""
    batches_s: float | None = None
    """Of `train`, the seconds in which batches were made and trained on; None: not known."""
    forward_s: float | None = None
    """Of these, the seconds of the model's passes over `num_trained` samples; None: not known."""
    finished_at: float | None = None
    """When its model was stored, in seconds since 1970; None: it is not yet."""
    online: bool = False
    """Whether it is the steps of proactive training."""


class Trigger(ABC):
    """A trigger policy, built from its `Config` once per run.

    Two questions, `next_check` and `check`, change nothing; what happened arrives by `observe`, `checked`, `triggered` and `ended`, and may
    change the policy's state. In the order of the stream, for each position at which the policy decides: `next_check`, `observe` of the
    samples before it, `check`, `checked`, and if it fires `triggered` and `ended`, which calls `trained` where a model was made.

    As `online.trigger` it hears also of triggers and models of `trigger`, between its checks: where it decides next must not depend on these.

    Decisions depend on the configuration, the context, the samples and these events, and on nothing else: no clock, no global generator.
    That is what makes an experiment the same as production. A resumed run takes journalled verdicts (those with evidence) from the journal
    instead of asking `check`, so that also a verdict that does not repeat exactly is repeated.
    """

    Config: ClassVar[type[Section]]
    """Options of the policy: the keys of the `trigger` section beside `id`."""
    late_span_s: int = 86_400
    """Seconds of stream time: if all samples since the newest one are older than it, and span so much among themselves, the run warns."""

    def __init__(self, config: Section, context: TriggerContext | None = None) -> None:
        self.context = context or TriggerContext()

    @property
    def label_delay(self) -> int:
        """How many seconds of stream time labels come after their samples, as the pipeline or the policy's own option says."""
        return self.context.label_delay

    @property
    def sees_next_sample(self) -> bool:
        """Whether it decides at a position by the sample behind it, so that it decides at the end of a batch once the next one is there."""
        return False

    @classmethod
    def problems(cls, options: Mapping[str, Any], path: str) -> list[Problem]:
        """Every mistake in the options of this policy. For policies that hold others: those of their sections too, each at its own path.

        Args: options: the `trigger` section without `id`. path: where the section stands in the file.
        """
        return check_section(cls.Config, options, path)

    @abstractmethod
    def next_check(self, batch: SampleBatch, start: int) -> int | None:
        """The first position behind `start` at which to decide; None: none in this batch. Pure arithmetic: no calls, no changes.

        Position c of a batch is between samples: after c of its samples, 0 <= c <= len(batch).

        Args: batch: observed up to `start`. start: the newest position that was decided on; -1: before the batch, so that 0 may be
            returned. Nothing is decided before the first sample of a stream: its first batch starts at 0.
        """

    def check(self, context: CheckContext) -> Check:
        """Decide at the position that `next_check` returned, whose samples have been observed. Changes nothing.

        By default it fires: then `next_check` is the whole policy.
        """
        return Check(fires=True)

    def observe(self, samples: SampleBatch) -> None:  # noqa: B027 - for policies that count
        """Receive the next samples of the stream, which may be none. Those whose labels come with them are `samples.labelled`."""

    def checked(self, record: CheckRecord) -> None:  # noqa: B027
        """Receive the verdict at this position, just made or replayed from the journal."""

    def triggered(self, outcome: TriggerOutcome) -> None:  # noqa: B027
        """Receive the trigger that the check before has fired; its trigger set is fixed next."""

    def ended(self, outcome: TriggerOutcome) -> None:
        """Receive the end of a trigger, which may have made no model. By default that is news only with one, by `trained`."""
        if outcome.model_id is not None:
            self.trained(outcome)

    def trained(self, outcome: TriggerOutcome) -> None:  # noqa: B027
        """Receive the trigger that has produced a model. Called once per model, in order."""

    def warning(self) -> str | None:
        """Return what keeps the policy from firing although samples arrive, for the user of the run; None: nothing. Changes nothing."""
        return None

    def lacking(self) -> str:
        """What it has had too little of to fire as it is meant, in a clause for the end of the stream; empty: nothing. Changes nothing."""
        return ""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What survives a restart, as JSON, between batches: small, with a `version`."""

    @abstractmethod
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state()`. Raises CorruptStateError if it is not a state of this policy that this version can read."""


def next_position(policy: Trigger, batch: SampleBatch, start: int) -> int | None:
    """What `policy.next_check` returns. Raises UserCodeError if it is not a position behind `start` within the batch."""
    at = policy.next_check(batch, start)
    if at is not None and not (type(at) is int and start < at <= len(batch)):
        raise UserCodeError(
            f"trigger {type(policy).__name__} wants to check at position {at!r} of a batch of {len(batch)} samples, after {start}: "
            "positions are int, ascend, and lie within the batch; correct its `next_check`"
        )
    return at


class DueChecks:
    """The positions of one batch at which a policy decides, one after the other. Each is asked for when the policy has observed what is before the
    one that it has decided on, whatever was observed since.

    Args: start: the newest position that was decided on; less than 0: before the batch.
    """

    def __init__(self, batch: SampleBatch, policy: Trigger, start: int) -> None:
        self._batch, self._policy = batch, policy
        self.at = next_position(policy, batch, max(start, -1))
        """The next one; None: there is none in this batch."""

    def go_on(self) -> None:
        """Move on, once the policy has decided at `at`."""
        if self.at is not None:
            self.at = next_position(self._policy, self._batch, self.at)

    def before(self, other: DueChecks) -> bool:
        """Whether this one comes first. At one position that is what decides without the sample behind it, for that comes at the end of a batch,
        and else `other`: so the order does not depend on how the stream is cut."""
        if self.at is None or other.at is None:
            return self.at is not None
        return (self.at, self._policy.sees_next_sample) < (other.at, other._policy.sees_next_sample)


def next_due(policies: Sequence[Trigger], batch: SampleBatch, start: int) -> tuple[int | None, tuple[bool, ...], bool]:
    """The first position behind `start` at which any of several policies decides, which of them do, and whether only the next sample is missing.

    Where one of them decides by the next sample, the end of a batch is left to the next batch for all: so they are asked at one position
    together, however the stream is cut.
    """
    found = [next_position(policy, batch, start) for policy in policies]
    last = len(batch) - any(policy.sees_next_sample for policy in policies)
    at = min((position for position in found if position is not None and position <= last), default=None)
    is_left = at is None and last < len(batch) and len(batch) in found
    return at, tuple(at is not None and position == at for position in found), is_left


def read_state(policy: str, state: Mapping[str, Any], version: int, fields: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    """The `fields` of `state`, checked by name and type. Raises CorruptStateError when version, names or types are others.

    Args: policy: its name, in messages. fields: name → types that its value may have, subclasses excluded.

    >>> read_state("Every10", {"version": 1, "pending": 3}, 1, {"pending": (int,)})
    {'pending': 3}
    """
    if state.get("version") != version:
        raise CorruptStateError(
            f"the saved state of {policy} has version {state.get('version')!r}, this release reads version {version}; "
            "resume the run with the release that started it"
        )
    values = {name: value for name, value in state.items() if name != "version"}
    wrong = [name for name, types in fields.items() if name in values and type(values[name]) not in types]
    if values.keys() != fields.keys() or wrong:
        raise CorruptStateError(f"the saved state of {policy} is not readable: expected {sorted(fields)}, found {dict(state)}")
    return values
