"""What crosses a boundary between rooms: frozen records with arrays in them.

Times are int64 seconds since 1970, intervals are [start, end), keys are int64 and dense per dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

import numpy as np
import numpy.typing as npt

from modyn.errors import InvalidArgumentError

BoolArray = npt.NDArray[np.bool_]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
LabelArray = npt.NDArray[np.int64] | npt.NDArray[np.float64]

RunId = NewType("RunId", str)
"""Name of a run, unique in one installation, e.g. `digits-0007`: safe as a file name."""

MIN_TIMESTAMP = -(2**63)
MAX_TIMESTAMP = 2**63 - 1
LARGEST_LABEL = float(np.finfo(np.float32).max)
"""Of labels that are fractions, and without its sign: trainings have them as float32."""
NO_LABEL = -(2**63)
"""In columns of int64, the mark of a sample without a label, which no label may be; in columns of float64 it is NaN."""


def why_no_label(label: float, float_labels: bool) -> str:
    """Why a number that is sent cannot be a label, and what to do; empty: it can. Args: float_labels: of the dataset.

    >>> why_no_label(2**53 + 1, float_labels=True)
    'label 9007199254740993 is a whole number that no float64 is: it would be rounded; take a dataset with label_type int'
    """
    if not float_labels:
        if NO_LABEL < label < 2**63 and int(label) == label:
            return ""
        return f"label is {label}; the labels of this dataset are whole numbers of 64 bits, but for the smallest one"
    if not abs(label) <= LARGEST_LABEL:  # NaN is not either
        return f"label is {label}; send a finite number of at most {LARGEST_LABEL:.4g}, as float32 holds"
    if isinstance(label, int) and int(float(label)) != label:
        return f"label {label} is a whole number that no float64 is: it would be rounded; take a dataset with label_type int"
    return ""


def has_label(labels: LabelArray) -> BoolArray:
    """For each sample whether it has a label, bool (n,). Args: labels: int64 or float64 (n,).

    >>> has_label(np.array([3, NO_LABEL])).tolist(), has_label(np.array([0.5, np.nan])).tolist()
    ([True, False], [True, False])
    """
    return ~np.isnan(labels) if labels.dtype.kind == "f" else labels != NO_LABEL


def keys_array(keys: Sequence[int] | Int64Array) -> Int64Array:
    """Return sample keys, a list or an array of whole numbers, as int64 (n,). Raises InvalidArgumentError: they are none.

    >>> keys_array([3, 1]).dtype, len(keys_array([]))
    (dtype('int64'), 0)
    """
    array = np.asarray(keys)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidArgumentError(
            f"keys are whole numbers in one list or array; this is {array.dtype} of shape {list(array.shape)}"
        )
    return array.astype(np.int64, copy=False)


class JobState(StrEnum):
    """Where work that a worker process does stands: a training, an evaluation. The last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_final(self) -> bool:
        """Whether no other state follows."""
        return self in (JobState.FINISHED, JobState.FAILED, JobState.STOPPED)


@dataclass(frozen=True, slots=True)
class Interval:
    """Times [start, end), in seconds since 1970."""

    start: int = MIN_TIMESTAMP
    end: int = MAX_TIMESTAMP

    def __contains__(self, timestamp: int) -> bool:
        return self.start <= timestamp < self.end


@dataclass(frozen=True, slots=True)
class ServingLoad:
    """What servers of predictions measured lately: of one server, or of all that serve a run."""

    rate: float = 0.0
    """Requests answered per second."""
    mean_s: float = 0.0
    """Mean seconds from the arrival of a request to its answer."""
    p99_s: float = 0.0
    """Seconds within which 99 of 100 were answered."""
    num_servers: int = 0
    at: float = 0.0
    """When the supervisor was asked, by its clock, in seconds since 1970; 0: it has not been."""


class VersionRole(StrEnum):
    """How a version of a model comes to answer requests."""

    SERVING = "serving"
    """It answers those that name no version."""
    CANARY = "canary"
    """It answers a share of them."""
    SHADOW = "shadow"
    """It gets copies; its answers are compared, and not sent."""
    PINNED = "pinned"
    """It answers requests that name it."""


@dataclass(frozen=True, slots=True)
class VersionUse:
    """What a server of predictions reports of one version."""

    model_id: int
    role: VersionRole
    seconds: float | None
    """For how long the server has used it so; None: it does no more, or holds it for requests that name it."""
    latencies: Mapping[int, int]
    """Histogram of the requests since the last report that arrived, as `latencies.histogram` makes it; empty of a shadow."""


@dataclass(frozen=True, slots=True)
class StreamWindow:
    """The samples of a run's stream at positions [start, stop) whose timestamps lie in `times`."""

    start: int
    stop: int
    times: Interval = Interval()
    labelled: bool = False
    """Whether positions count in the order in which the labels came, and not in that of the stream."""

    def __str__(self) -> str:
        """What messages call this window."""
        times = "" if self.times == Interval() else f" at times [{self.times.start}, {self.times.end})"
        return f"[{self.start}, {self.stop}){' of the labels' * self.labelled}{times}"


@dataclass(frozen=True, slots=True)
class EvalInterval:
    """Evaluation data comes from [start, end); `anchor` is the time that it stands for (SIGMOD'25, section 3.1)."""

    start: int
    end: int
    anchor: int


@dataclass(frozen=True, slots=True, eq=False)
class SampleBatch:
    """A slice of a stream, in stream order. All three arrays have shape (n,).

    keys: int64. timestamps: int64 seconds. labels: int64 or float64; see `has_label`.
    """

    keys: Int64Array
    timestamps: Int64Array
    labels: LabelArray

    def __post_init__(self) -> None:
        if not len(self.keys) == len(self.timestamps) == len(self.labels):
            raise ValueError(
                f"columns differ in length: {len(self.keys)} keys, {len(self.timestamps)} timestamps, {len(self.labels)} labels"
            )

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def labelled(self) -> SampleBatch:
        """The samples whose labels come with these of the stream: the same ones, where labels do not come late."""
        return self

    def num_labelled(self, position: int) -> int:
        """How many labels have come with the samples before a position of this batch."""
        return position

    def position_with(self, num_labelled: int) -> int:
        """The first position of this batch before which `num_labelled` labels have come; above its length: there is none in it."""
        return num_labelled

    def slice(self, start: int, stop: int) -> SampleBatch:
        """Samples [start, stop) of this batch, as views."""
        return SampleBatch(self.keys[start:stop], self.timestamps[start:stop], self.labels[start:stop])

    @staticmethod
    def empty() -> SampleBatch:
        """A batch of no sample, with int64 labels."""
        nothing = np.empty(0, np.int64)
        return SampleBatch(nothing, nothing, nothing)

    @staticmethod
    def concatenate(batches: list[SampleBatch]) -> SampleBatch:
        """One batch with the samples of all, in order."""
        if not batches:
            return SampleBatch.empty()
        return SampleBatch(
            np.concatenate([b.keys for b in batches]),
            np.concatenate([b.timestamps for b in batches]),
            np.concatenate([b.labels for b in batches]),
        )


@dataclass(frozen=True, slots=True)
class DeletedSamples:
    """The samples of a data file that were deleted, so that it is taken again."""

    dataset: str
    identity: str
    """Identity of the dataset's registration."""
    path: str
    """The data file, as the caller named it."""
    num_samples: int
    first_key: int | None
    """The smallest key of them; None: there are none."""


@dataclass(frozen=True, slots=True)
class TriggerSetInfo:
    """What is known of a trigger set without reading it. Partition p holds positions [p·size, (p+1)·size) of the set."""

    run_id: RunId
    trigger_id: int
    num_keys: int
    partition_size: int
    keys_checksum: str
    """SHA-256 of the keys as little-endian int64: two trigger sets are equal if and only if this is."""
    dataset_identity: str = ""
    """Identity of the registered dataset that the keys belong to; empty: not known."""
    feedback: tuple[str, ...] = ()
    """Names of the scores of trained samples that the selection asks the training for."""

    @property
    def num_partitions(self) -> int:
        """Partitions of the set, the last one perhaps shorter."""
        return -(-self.num_keys // self.partition_size)


@dataclass(frozen=True, slots=True, eq=False)
class KeysAndWeights:
    """Part of a trigger set. keys: int64 (n,); weights: float32 (n,)."""

    keys: Int64Array
    weights: Float32Array

    def __len__(self) -> int:
        return len(self.keys)

    @staticmethod
    def unweighted(keys: Int64Array) -> KeysAndWeights:
        """The keys, each with weight 1: a read-only view of one number."""
        return KeysAndWeights(keys, np.broadcast_to(np.float32(1), keys.shape))

    @staticmethod
    def concatenate(parts: Sequence[KeysAndWeights]) -> KeysAndWeights:
        """One record with the keys and weights of all parts, in order."""
        return KeysAndWeights(
            np.concatenate([np.empty(0, np.int64), *(part.keys for part in parts)]),
            np.concatenate([np.empty(0, np.float32), *(part.weights for part in parts)]),
        )


OTHER_CLASSES = "others"
"""Name of the classes that the record of a training counts together, beyond those that it counts by themselves."""


@dataclass(frozen=True, slots=True)
class ClassCount:
    """Samples of one class (label) among the candidates of a trigger, and among those that it chose."""

    label: int
    candidates: int
    chosen: int


@dataclass(frozen=True, slots=True)
class SelectionSummary:
    """What a trigger chose from, and what it chose.

    num_shared: chosen samples that the trigger before chose too. num_classes: different labels among the candidates; 0: labels are no classes.
    classes: those with the most candidates, by label. Ages (seconds before the newest candidate) and weights: minimum, quartiles, maximum.
    """

    trigger_id: int
    num_candidates: int
    num_chosen: int
    num_shared: int
    num_classes: int
    classes: tuple[ClassCount, ...]
    ages: tuple[float, ...]
    candidate_ages: tuple[float, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """One stored model: what one trigger of one run produced, or what a user imported (then run_id is empty)."""

    model_id: int
    run_id: RunId
    trigger_id: int
    parent_id: int | None
    weights_sha256: str
    """Over tensor names, dtypes, shapes and bytes, in order of name: equal models have equal hashes whatever the file format."""
    num_bytes: int
    created_at: float
    strategy: str
    promoted: bool


DOWNSAMPLING_SCORE = "downsampling_score"
"""Name of the score by which a training chose a sample; NaN where its policy has none, or several numbers."""
DOWNSAMPLING_WEIGHT = "downsampling_weight"
"""Name of the weight with which a chosen sample counts in its training."""


@dataclass(frozen=True, slots=True)
class FeedbackHeader:
    """What one training has scored: `num_rows` samples, in the order in which it saw them.

    keys_checksum: of the trigger set that it trained on. attempt: a later attempt at the training has a larger number. widths: numbers that
    each score has, by its name.
    """

    run_id: RunId
    trigger_id: int
    keys_checksum: str
    attempt: int
    num_rows: int
    widths: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class FeedbackRows:
    """Scores of n samples. keys: int64 (n,). epochs: int32 (n,), from 0. scores: float32 (n, width) by name; NaN where there is none."""

    keys: Int64Array
    epochs: Int32Array
    scores: Mapping[str, Float32Array]

    def __len__(self) -> int:
        return len(self.keys)

    def slice(self, start: int, stop: int) -> FeedbackRows:
        """Rows [start, stop), as views."""
        scores = {name: values[start:stop] for name, values in self.scores.items()}
        return FeedbackRows(self.keys[start:stop], self.epochs[start:stop], scores)
