"""Records of the supervisor: runs, their events and triggers.

Messages (protos/modyn/proto/supervisor.proto) and tables (tables.py) have fields of the same names, and are converted by name: a new
field stands in the record, the message, the table and its migration, and nowhere else.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Final

from modyn.errors import InvalidArgumentError
from modyn.records import MAX_TIMESTAMP, MIN_TIMESTAMP, Interval, JobState, RunId, VersionRole
from modyn.supervisor.cursor import Cursor
from modyn.supervisor.states import TERMINAL, RunState, TriggerState
from modyn.supervisor.triggers.base import TriggerOutcome
from modyn.supervisor.work_clock import batch_seconds, trained_seconds

if TYPE_CHECKING:
    from sqlalchemy import Table

MAX_TAGS: Final = 20
_TAG: Final = re.compile(r"[\w.:/=-]{1,64}", re.ASCII)


def slug(name: str) -> str:
    """`name` as the start of a run's id, which is used as a file name.

    >>> slug("Digits, 10 years!")
    'digits-10-years'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "run"


class RunMode(StrEnum):
    """The order in which a run receives the samples of its dataset, and when it ends."""

    EXPERIMENT = "experiment"
    """Replay history in the order (timestamp, key)."""
    PRODUCTION = "production"
    """Follow the dataset in order of arrival, first what it holds already, until stopped."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a pipeline is run: over which samples, and how often it may trigger."""

    mode: RunMode
    from_timestamp: int | None = None
    to_timestamp: int | None = None
    max_triggers: int | None = None
    final_trigger: bool = False
    """Whether the samples that are left when the stream ends are trained on, although the policy has not fired."""
    tags: Sequence[str] = ()
    """Labels that the user gave the run, to find it by."""

    @property
    def interval(self) -> Interval:
        """The timestamps [start, end) whose samples the run receives."""
        return Interval(
            MIN_TIMESTAMP if self.from_timestamp is None else self.from_timestamp,
            MAX_TIMESTAMP if self.to_timestamp is None else self.to_timestamp,
        )

    def check(self) -> None:
        """Check the options against each other. Raises InvalidArgumentError for options that contradict each other."""
        if self.mode is RunMode.PRODUCTION and self.to_timestamp is not None:
            raise InvalidArgumentError(
                "a production run follows live data and has no end time; stop it, or set a number of triggers"
            )
        if self.from_timestamp is not None and self.to_timestamp is not None and self.from_timestamp >= self.to_timestamp:
            raise InvalidArgumentError(
                f"the interval [{self.from_timestamp}, {self.to_timestamp}) is empty; its end must be later"
            )
        if self.max_triggers is not None and self.max_triggers < 1:
            raise InvalidArgumentError(f"at most {self.max_triggers} triggers is no run; ask for 1 or more")
        for tag in self.tags:
            if not _TAG.fullmatch(tag):
                raise InvalidArgumentError(
                    f"{tag!r} is no tag: allowed are 1 to 64 letters, digits, `_`, `.`, `:`, `/`, `=`, `-`"
                )
        if len(self.tags) > MAX_TAGS:
            raise InvalidArgumentError(f"{len(self.tags)} tags are given; a run has {MAX_TAGS} at most")


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a pipeline, as it stands now. Times are seconds since 1970."""

    run_id: RunId
    pipeline_name: str
    mode: RunMode
    state: RunState
    submitted_at: float
    finished_at: float | None = None
    """When it last became terminal; None while it is active."""
    error: str = ""
    """Why it failed or was interrupted."""
    error_reason: str = ""
    """Machine-readable name of the error, as in modyn/errors.py."""
    message: str = ""
    """What else the user should know, e.g. that no trigger fired and why."""
    num_samples: int = 0
    """Seen in the stream so far."""
    total_samples: int | None = None
    """Samples of the whole stream; None if not known (production mode)."""
    num_waiting: int = 0
    """Samples among `num_samples` whose labels have not come."""
    num_triggers: int = 0
    samples_trained: int = 0
    """Over all trainings, as the trainer counted: after downsampling, each epoch."""
    failed_evaluations: int = 0
    """Evaluations that failed and whose scores are not there: neither made again since, nor, of one that was requested, made before."""
    from_timestamp: int | None = None
    to_timestamp: int | None = None
    max_triggers: int | None = None
    final_trigger: bool = False
    tags: Sequence[str] = ()
    yaml: str = ""
    """The pipeline file as submitted."""
    pipeline: dict[str, Any] = field(default_factory=dict)
    """The pipeline with defaults filled in."""

    @property
    def options(self) -> RunOptions:
        """The options that the run was submitted with."""
        return RunOptions(self.mode, self.from_timestamp, self.to_timestamp, self.max_triggers, self.final_trigger, self.tags)

    @property
    def datasets(self) -> frozenset[str]:
        """Names of the datasets that it trains on and evaluates on."""
        evaluation = self.pipeline.get("evaluation") or {}
        sections = [self.pipeline.get("data") or {}, *(evaluation.get("datasets") or [])]
        return frozenset(section["dataset_id"] for section in sections if "dataset_id" in section)

    @property
    def is_terminal(self) -> bool:
        """Nothing runs any more."""
        return self.state in TERMINAL


@dataclass(frozen=True, slots=True)
class RequestedEvaluation:
    """Evaluations of a run that a user asked for, independent of the state of the run."""

    run_id: RunId
    number: int
    """1, 2, … within the run."""
    state: JobState
    submitted_at: float
    finished_at: float | None = None
    error: str = ""
    """The first failure, and how many there are."""
    error_reason: str = ""
    handlers: Sequence[str] = ()
    """Names of the handlers; none: all manual ones, and what has failed before."""
    section: dict[str, Any] | None = None
    """The `evaluation` section that takes the place of the run's own."""
    after_seq: int = 0
    """The run's newest event at submission."""


class EventKind(StrEnum):
    """What an event reports, and what is in its `detail`."""

    RUN_STATE = "run_state"
    """state, error, error_reason, message"""
    TRIGGER_FIRED = "trigger_fired"
    """position, first_timestamp, last_timestamp, fired_at_timestamp, num_samples (since the last trigger), online"""
    STEP = "step"
    """step (select | train | evaluate), state (started | finished | failed), and what the step found or made:
    select: num_keys; train: model_id (none: reason), seconds, loss, skipped_steps of num_steps and
    ignored_labels of num_labels if there are some, of steps `tested` samples and their prequential_error or prequential_loss, and
    when it starts downsampling_turn and downsampling_score, if a score decides; evaluate: handler, dataset, seconds, error"""
    CHECK = "check"
    """position, timestamp, fires, seconds, evidence, online: of a check of a trigger policy that looked at data, as in `CheckRecord`"""
    MESSAGE = "message"
    """message"""
    STREAM_PROGRESS = "stream_progress"
    """num_samples, total_samples (0 = not known), timestamp. This kind and those below are not kept."""
    TRAINING_PROGRESS = "training_progress"
    """state (queued: it waits for a worker | running), samples_seen, samples_total (0 = not known yet), batches_seen, loss, samples_per_s; while
    a selection scores candidates, samples_scored and samples_to_score; stage, as in `TrainingStatus`, if there is one"""
    EVALUATION_PROGRESS = "evaluation_progress"
    """handler, dataset, samples_seen, samples_total"""
    SERVING = "serving"
    """What servers of predictions do now, as in `ServingStatus`. It says nothing of how far the run is, and stops when they do."""


PROGRESS = frozenset({EventKind.STREAM_PROGRESS, EventKind.TRAINING_PROGRESS, EventKind.EVALUATION_PROGRESS, EventKind.SERVING})


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that happened in a run."""

    seq: int
    """1, 2, … within the run for events that are kept; 0 for progress."""
    time: float
    kind: EventKind
    trigger_id: int | None
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """A version that servers of predictions use now."""

    model_id: int
    role: VersionRole
    since: float
    """Of the server that has done so for the longest, without its restarts; seconds since 1970."""


@dataclass(frozen=True, slots=True)
class ServingStatus:
    """What the servers of a run's predictions do now, together."""

    rate: float = 0.0
    """Requests answered per second, over the last seconds."""
    p99_s: float = 0.0
    """Seconds within which the slowest server answered 99 of 100."""
    num_servers: int = 0
    versions: tuple[ServedVersion, ...] = ()
    """Serving ones first; several of one role where servers differ."""


@dataclass(frozen=True, slots=True)
class ServedInterval:
    """What servers reported of one version and role in an interval of time, all servers together."""

    start: int
    """Seconds since 1970; a multiple of `width`."""
    width: int
    """Seconds."""
    model_id: int
    role: VersionRole
    first_at: float
    """When the first report in the interval came, and the last: seconds since 1970."""
    last_at: float
    latencies: Mapping[int, int] = field(default_factory=dict)
    """Histogram of the requests, as `latencies.histogram` makes it; empty where none came."""

    @property
    def num_requests(self) -> int:
        """Requests that were answered, errors included."""
        return sum(self.latencies.values())


@dataclass(frozen=True, slots=True)
class TriggerRecord:
    """One trigger and what is known of it so far. Stream times are int64 seconds, the others are seconds since 1970."""

    trigger_id: int
    position: int
    """Samples of the stream before it, counted from the run's start."""
    first_timestamp: int
    """Smallest timestamp of the samples whose labels have come since the last trigger; where it is not online, since the last that was not
    online. Where none has come, as `fired_at_timestamp`."""
    last_timestamp: int
    """Largest timestamp of them."""
    fired_at_timestamp: int
    """Stream time of the decision: the largest timestamp seen until then."""
    state: TriggerState
    started_at: float
    finished_at: float | None = None
    """When its model was stored."""
    num_keys: int | None = None
    keys_checksum: str | None = None
    model_id: int | None = None
    parent_model_id: int | None = None
    weights_sha256: str | None = None
    training_result: Mapping[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of work by stage: select, train, store, evaluate, total; those that are known. Computed from the steps, no column."""
    downsampling_turn: int | None = None
    """The position in `downsampling_list` of the policy that serves it, where `downsampling_thresholds` go by a score. None: they do not, it
    is one of `warmup_triggers`, or it is not decided yet."""
    downsampling_score: float | None = None
    """The score that decided; None: there was none, and the turn of the trigger before stayed."""
    online: bool = False
    """Whether it is the steps of proactive training, by the section `online`, and not what `trigger` fired for."""
    num_waiting: int = 0
    """Samples before it whose labels had not come."""

    @classmethod
    def fired(cls, cursor: Cursor, times: tuple[int, int], known: TriggerRecord | None, *, online: bool) -> TriggerRecord:
        """The trigger that fires where a cursor stands. Args: times: first and last of its samples. known: what the journal has of it."""
        assert cursor.max_timestamp is not None
        return cls(
            trigger_id=cursor.num_triggers,
            position=cursor.position,
            first_timestamp=times[0],
            last_timestamp=times[1],
            fired_at_timestamp=cursor.max_timestamp,
            state=TriggerState.FIRED,
            started_at=time.time() if known is None else known.started_at,
            online=online,
            num_waiting=cursor.num_waiting,
        )

    @property
    def data_end(self) -> int:
        """The first time that no sample up to this trigger has reached: late samples do not make a newer model count as older."""
        return self.fired_at_timestamp + 1

    @property
    def num_trained(self) -> int | None:
        """Samples trained on, as the trainer counted: after downsampling, each epoch. None: it trained nothing yet."""
        return None if self.model_id is None else int(self.training_result.get("num_samples", self.num_keys or 0))

    @property
    def num_loaded(self) -> int | None:
        """Samples that the training was given, each epoch: where it chose within its batches, all candidates. None: it trained nothing yet."""
        downsampling = self.training_result.get("downsampling") or {}
        if self.model_id is None or downsampling.get("mode") != "batch_then_sample":
            return self.num_trained
        return int(downsampling["num_candidates"])

    @property
    def num_skipped(self) -> int | None:
        """Samples of the trigger set that were left out, each epoch: deleted since the selection, or bad. None: it trained nothing yet."""
        return None if self.model_id is None else int(self.training_result.get("num_skipped", 0))

    @property
    def batches_s(self) -> float | None:
        """Seconds in which batches were made and trained on, as the trainer measured; None: it did not."""
        return batch_seconds(self.training_result)

    @property
    def forward_s(self) -> float | None:
        """Seconds of the model's passes over the samples trained on, as the trainer measured; None: it did not."""
        return trained_seconds(self.training_result).get("forward")

    def outcome(self) -> TriggerOutcome:
        """What the trigger policy hears of it. Evaluations overlap what comes next: how far they are is no ground for a decision."""
        seconds = {stage: seconds for stage, seconds in self.seconds.items() if stage != "evaluate"}
        known = {field.name: getattr(self, field.name) for field in fields(TriggerOutcome) if hasattr(self, field.name)}
        return TriggerOutcome(**{**known, "seconds": seconds})


@dataclass(frozen=True, slots=True)
class NewRun:
    """A submission that has been checked and is to be written to the journal."""

    options: RunOptions
    pipeline_name: str
    yaml: str
    file_name: str
    pipeline: Mapping[str, Any]
    selection_seed: int
    total_samples: int | None = None
    end_key: int | None = None
    """The dataset's next key at submission: a replay reads only samples with smaller keys. None in production mode."""
    end_label: int | None = None
    """How many labels of the dataset had come after their samples at submission: a replay reads no further ones. None in production mode."""
    dataset_identity: str = ""
    """Identity of the registered dataset at submission: the run reads no samples of another one. Empty: not known."""
    evaluation_identities: Mapping[str, str] = field(default_factory=dict)
    """By name the identity of each dataset of the section `evaluation` at submission: the run is scored on no other one."""
    submission_id: str | None = None
    """The client's own: a submission that is repeated with it makes no second run. None: it is not repeated."""


def model_at(ends: Sequence[int], anchor: int, *, following: bool = False) -> int:
    """Index of the model that answers at a time; -1 if there is none. The one rule for the evaluation plan and the composite models.

    Currently active is the newest model whose data ends before the anchor; before the end of the first model's data it is undefined. Currently
    trained is the model after the active one, or the last if there is none after it; where the active one is undefined, the most recent model
    of all. Source: SIGMOD'25, section 3.1, "From matrices to sequence".

    Args: ends: `TriggerRecord.data_end` of all models, in order; they ascend. following: return the currently trained model.

    >>> [model_at([10, 20, 20], anchor) for anchor in (9, 10, 19, 20, 99)]
    [-1, 0, 0, 2, 2]
    >>> [model_at([10, 20, 30], anchor, following=True) for anchor in (9, 10, 19, 20, 99)]
    [2, 1, 1, 2, 2]
    """
    active = bisect_right(ends, anchor) - 1
    if not following:
        return active
    return len(ends) - 1 if active < 0 else min(active + 1, len(ends) - 1)


def to_row(record: Any, table: Table) -> dict[str, Any]:
    """The values of a dataclass for the columns of `table` that have the names of its fields."""
    values = {field.name: getattr(record, field.name) for field in fields(record) if field.name in table.c}
    return {name: str(value) if isinstance(value, Enum) else value for name, value in values.items()}
