"""Records of the supervisor: runs, their triggers and evaluations. Events are in run_events.py.

Messages (protos/modyn/proto/supervisor.proto) and tables (tables.py) have fields of the same names, and are converted by name. A new field is added
only to the record, the message, the table and the table's migration.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum, StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from modyn.config.evaluation import Evaluation
from modyn.errors import InvalidArgumentError
from modyn.json_codec import JsonRecord
from modyn.records import MAX_TIMESTAMP, MIN_TIMESTAMP, EvalInterval, Interval, JobState, RunId, VersionRole
from modyn.supervisor.journal.cursor import Cursor
from modyn.supervisor.journal.states import TERMINAL, RunState, TriggerState
from modyn.supervisor.triggers.base import TriggerOutcome
from modyn.trainer_server.client import NO_RESULT, TrainingResult

if TYPE_CHECKING:
    from sqlalchemy import Table

MAX_TAGS: Final = 20
_TAG: Final = re.compile(r"[\w.:/=-]{1,64}", re.ASCII)


def slug(name: str) -> str:
    """Return `name` in the form that begins a run's id. The form is valid in file names.

    >>> slug("Digits, 10 years!")
    'digits-10-years'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "run"


class RunMode(StrEnum):
    """The order in which a run receives the samples of its dataset, and when the run ends."""

    EXPERIMENT = "experiment"
    """Replay history in the order (timestamp, key)."""
    PRODUCTION = "production"
    """Follow the dataset in order of arrival until stopped, beginning with the samples that the dataset already contains."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run: the samples of the run, and the largest number of triggers."""

    mode: RunMode
    from_timestamp: int | None = None
    to_timestamp: int | None = None
    max_triggers: int | None = None
    final_trigger: bool = False
    """Whether a last trigger trains on the samples that remain when the stream ends."""
    tags: Sequence[str] = ()
    """Labels by which the user finds the run."""

    @property
    def interval(self) -> Interval:
        """Interval [start, end) of the timestamps of the samples that the run receives."""
        return Interval(
            MIN_TIMESTAMP if self.from_timestamp is None else self.from_timestamp,
            MAX_TIMESTAMP if self.to_timestamp is None else self.to_timestamp,
        )

    def check(self) -> None:
        """Check the options. Raises: InvalidArgumentError: options are invalid, or contradict each other."""
        if self.mode is RunMode.PRODUCTION and self.to_timestamp is not None:
            raise InvalidArgumentError(
                "a production run follows live data and has no end time; stop it, or set a number of triggers"
            )
        if self.from_timestamp is not None and self.to_timestamp is not None and self.from_timestamp >= self.to_timestamp:
            raise InvalidArgumentError(
                f"the interval [{self.from_timestamp}, {self.to_timestamp}) is empty; its end must be later"
            )
        if self.max_triggers is not None and self.max_triggers < 1:
            raise InvalidArgumentError(f"at most {self.max_triggers} triggers is not a run; ask for 1 or more")
        for tag in self.tags:
            if not _TAG.fullmatch(tag):
                raise InvalidArgumentError(
                    f"{tag!r} is not a tag: allowed are 1 to 64 letters, digits, `_`, `.`, `:`, `/`, `=`, `-`"
                )
        if len(self.tags) > MAX_TAGS:
            raise InvalidArgumentError(f"{len(self.tags)} tags are given; a run has {MAX_TAGS} at most")


@dataclass(frozen=True)
class Run:
    """One execution of a pipeline, in its present state. Times are seconds since 1970."""

    run_id: RunId
    pipeline_name: str
    mode: RunMode
    state: RunState
    submitted_at: float
    finished_at: float | None = None
    """Time at which the run last became terminal; None while the run is active."""
    error: str = ""
    """Reason why the run failed or was interrupted."""
    error_reason: str = ""
    """Machine-readable name of the error, as in modyn/errors.py."""
    message: str = ""
    """Further information for the user, for example that no trigger fired and why."""
    num_samples: int = 0
    """Number of samples of the stream received so far."""
    total_samples: int | None = None
    """Number of samples of the whole stream; None if the number is not known (production mode)."""
    num_waiting: int = 0
    """Number of samples among `num_samples` whose labels have not arrived."""
    num_triggers: int = 0
    samples_trained: int = 0
    """Number of samples trained on in all trainings. The trainer counts samples after downsampling, and again in each epoch."""
    failed_evaluations: int = 0
    """Number of failed evaluations whose scores are missing. A later success removes a failure. For a requested evaluation, an earlier success
    counts too.
    """
    from_timestamp: int | None = None
    to_timestamp: int | None = None
    max_triggers: int | None = None
    final_trigger: bool = False
    tags: Sequence[str] = ()
    yaml: str = ""
    """The pipeline file as submitted."""
    pipeline: dict[str, Any] = field(default_factory=dict)
    """The pipeline with defaults filled in, as it is passed to services; empty if the run was read without its pipeline."""

    @property
    def options(self) -> RunOptions:
        """The options of the run's submission."""
        return RunOptions(self.mode, self.from_timestamp, self.to_timestamp, self.max_triggers, self.final_trigger, self.tags)

    @cached_property
    def evaluation(self) -> Evaluation:
        """The section `evaluation` of the pipeline."""
        return Evaluation.of(self.pipeline.get("evaluation"))

    @property
    def cache(self) -> Mapping[str, Any]:
        """The section `cache` of the pipeline, which the evaluator and the trainer server read."""
        return self.pipeline.get("cache") or {}

    @property
    def dataset_id(self) -> str | None:
        """Name of the dataset that the run trains on; None if the run was read without its pipeline."""
        return (self.pipeline.get("data") or {}).get("dataset_id")

    @property
    def datasets(self) -> frozenset[str]:
        """Names of the datasets that the run trains on and evaluates on."""
        return frozenset([*([self.dataset_id] if self.dataset_id else []), *self.evaluation.datasets])

    @property
    def is_terminal(self) -> bool:
        """Whether the run has ended: its state is terminal."""
        return self.state in TERMINAL


@dataclass(frozen=True, slots=True)
class RequestedEvaluation:
    """Evaluations of a run that a user asked for, independent of the state of the run."""

    run_id: RunId
    number: int
    """Number of the request within the run: 1, 2, …."""
    state: JobState
    submitted_at: float
    finished_at: float | None = None
    error: str = ""
    """Text of the first failure, and the number of failures."""
    error_reason: str = ""
    handlers: Sequence[str] = ()
    """Names of the handlers. If empty, the request covers all manual handlers, and evaluations that failed before."""
    section: dict[str, Any] | None = None
    """The `evaluation` section that replaces the run's own section."""
    after_seq: int = 0
    """Sequence number of the run's newest event at submission."""

    @property
    def evaluation(self) -> Evaluation | None:
        """The section that replaces the run's own section."""
        return None if self.section is None else Evaluation.of(self.section)


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """A model version that prediction servers use now."""

    model_id: int
    role: VersionRole
    since: float
    """Time at which a server began to use the version, in seconds since 1970. If several servers use the version, the earliest time counts. After a
    restart of a server, the time of the restart counts.
    """


@dataclass(frozen=True, slots=True)
class ServingStatus(JsonRecord):
    """Present state of all prediction servers of a run."""

    rate: float = 0.0
    """Number of requests answered per second, measured over the last seconds."""
    p99_s: float = 0.0
    """Seconds within which the slowest server answered 99 of 100 requests."""
    num_servers: int = 0
    versions: tuple[ServedVersion, ...] = ()
    """Versions that servers use, serving versions first; several versions have the same role if servers use different versions."""


@dataclass(frozen=True, slots=True)
class ServedInterval:
    """Sum of the reports of all servers about one version and role in an interval of time."""

    start: int
    """Seconds since 1970; a multiple of `width`."""
    width: int
    """Seconds."""
    model_id: int
    role: VersionRole
    first_at: float
    """Time of the first report in the interval, in seconds since 1970."""
    last_at: float
    """Time of the last report in the interval, in seconds since 1970."""
    latencies: Mapping[int, int] = field(default_factory=dict)
    """Histogram of the requests' latencies, as made by `latencies.histogram`; empty if no request arrived."""

    @property
    def num_requests(self) -> int:
        """Number of answered requests, including errors."""
        return sum(self.latencies.values())


@dataclass(frozen=True, slots=True)
class TriggerRecord:
    """One trigger and the facts known about the trigger so far. Stream times are int64 seconds; other times are seconds since 1970."""

    trigger_id: int
    position: int
    """Number of samples of the stream before the trigger."""
    first_timestamp: int
    """Smallest timestamp of the samples whose labels have arrived since the last trigger. If this trigger is not online, online triggers do not count
    as the last trigger. If no label has arrived, the value is `fired_at_timestamp`.
    """
    last_timestamp: int
    """Largest timestamp of the same samples as `first_timestamp`."""
    fired_at_timestamp: int
    """Stream time of the decision: the largest timestamp of the stream up to the decision."""
    state: TriggerState
    started_at: float
    finished_at: float | None = None
    """Time at which the trigger's model was stored."""
    num_keys: int | None = None
    keys_checksum: str | None = None
    model_id: int | None = None
    parent_model_id: int | None = None
    weights_sha256: str | None = None
    training_result: TrainingResult = NO_RESULT
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of work of each known stage: select, train, store, evaluate, total. Computed from the steps, without a column in the table."""
    downsampling_turn: int | None = None
    """Position of the trigger's policy in `downsampling_list`, if a score decides by `downsampling_thresholds`. None if no score decides, if the
    trigger is one of `warmup_triggers`, or if the decision is still open.
    """
    downsampling_score: float | None = None
    """The score that decided the position; None if there was no score, and the position of the previous trigger was kept."""
    online: bool = False
    """Whether the trigger consists of online steps of the section `online`, and is not a retraining by `trigger`."""
    num_waiting: int = 0
    """Number of samples before the trigger whose labels had not arrived."""

    @classmethod
    def fired(cls, cursor: Cursor, times: tuple[int, int], known: TriggerRecord | None, *, online: bool) -> TriggerRecord:
        """Return the trigger that fires at a cursor. Args: times: first and last timestamp of the trigger's samples. known: the journalled record."""
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
        """End of the data of the trigger: one second after the largest timestamp before the trigger. Therefore, the data of a newer model never ends
        earlier, even if the model's own samples are late.
        """
        return self.fired_at_timestamp + 1

    @property
    def num_trained(self) -> int | None:
        """Number of samples trained on. The trainer counts samples after downsampling, and again in each epoch. None if no training has finished."""
        if self.model_id is None:
            return None
        return self.training_result.counts.num_samples if self.training_result.has_ended else self.num_keys or 0

    @property
    def num_loaded(self) -> int | None:
        """Number of samples given to the training, counted again in each epoch; all candidates if the training chose samples within batches. None if
        no training has finished.
        """
        return (
            self.training_result.num_loaded if self.training_result.has_ended and self.model_id is not None else self.num_trained
        )

    @property
    def num_skipped(self) -> int | None:
        """Number of deleted or bad samples of the trigger set, which are left out; counted again in each epoch. None without a model."""
        return None if self.model_id is None else self.training_result.counts.num_skipped

    @property
    def batches_s(self) -> float | None:
        """Seconds in which batches were made and trained on, measured by the trainer; None if the trainer measured nothing."""
        return self.training_result.batches_s

    @property
    def forward_s(self) -> float | None:
        """Seconds of the model's passes over the samples trained on, measured by the trainer; None if the trainer measured nothing."""
        return self.training_result.seconds.get("forward")

    def outcome(self) -> TriggerOutcome:
        """Return the facts about the trigger that trigger policies receive. Evaluations are left out, because evaluations overlap the next trigger
        and must not influence a decision.
        """
        seconds = {stage: seconds for stage, seconds in self.seconds.items() if stage != "evaluate"}
        known = {field.name: getattr(self, field.name) for field in fields(TriggerOutcome) if hasattr(self, field.name)}
        return TriggerOutcome(**{**known, "seconds": seconds})


@dataclass(frozen=True, slots=True)
class NewRun:
    """A checked submission that will be written to the journal."""

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
    """Number of late labels of the dataset at submission: a replay reads no further labels. None in production mode."""
    dataset_identity: str = ""
    """Identity of the registered dataset at submission: the run reads no samples of another registration. Empty: not known."""
    evaluation_identities: Mapping[str, str] = field(default_factory=dict)
    """Identity of each dataset of the section `evaluation` at submission, by name: the run is evaluated on no other registration."""
    submission_id: str | None = None
    """Id made by the client: a repeated submission with the same id makes no second run. None if the client will not repeat the submission."""


def model_at(ends: Sequence[int], anchor: int, *, following: bool = False) -> int:
    """Return the index of the model that is in use at a time; -1 if no model is in use. The evaluation plan and composite models use this rule.

    The currently active model is the newest model whose data ends before the anchor; no model is active before the end of the first model's data. The
    currently trained model is the model after the active model. If no model follows, the last model is the trained model. If no model is active, the
    most recent model is the trained model. Source: SIGMOD'25, section 3.1, "From matrices to sequence".

    Args: ends: `TriggerRecord.data_end` of all models, in ascending order. following: return the currently trained model.

    >>> [model_at([10, 20, 20], anchor) for anchor in (9, 10, 19, 20, 99)]
    [-1, 0, 0, 2, 2]
    >>> [model_at([10, 20, 30], anchor, following=True) for anchor in (9, 10, 19, 20, 99)]
    [2, 1, 1, 2, 2]
    """
    active = bisect_right(ends, anchor) - 1  # Ends are exclusive: data that ends at the anchor is before the anchor.
    if not following:
        return active
    return len(ends) - 1 if active < 0 else min(active + 1, len(ends) - 1)


def to_row(record: Any, table: Table) -> dict[str, Any]:
    """Return the values of a dataclass for the columns of `table` that have the names of its fields."""
    values = {field.name: getattr(record, field.name) for field in fields(record) if field.name in table.c}
    return {name: _to_column(value) for name, value in values.items()}


def _to_column(value: Any) -> Any:
    if isinstance(value, JsonRecord):
        return value.to_mapping()
    return str(value) if isinstance(value, Enum) else value


When = int | str
"""Time at which an evaluation becomes due: when the model of the trigger with this id is stored, at the `end` of the run, or at a `request`."""


@dataclass(frozen=True, slots=True)
class EvaluationTask:
    """An evaluation of one model on one dataset, over the intervals of a handler that are due together."""

    handler: str
    dataset: str
    when: When
    trigger_id: int
    model_id: int
    intervals: tuple[EvalInterval, ...]

    @property
    def step_name(self) -> str:
        """Name of the step in the journal, unique within its trigger."""
        return f"{self.handler}/{self.dataset}/{self.when}"
