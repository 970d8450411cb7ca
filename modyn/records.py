"""Immutable records that several packages of Modyn exchange. Some records contain arrays.

Times are int64 seconds since 1970, intervals are [start, end), keys are int64 and dense in each dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NewType

import numpy as np
import numpy.typing as npt

from modyn import _core
from modyn.errors import InvalidArgumentError

BoolArray = npt.NDArray[np.bool_]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
LabelArray = npt.NDArray[np.int64] | npt.NDArray[np.float64]

RunId = NewType("RunId", str)
"""Name of a run, such as `digits-0007`. The name is unique in one installation, and can be a file name."""

MIN_TIMESTAMP = -(2**63)
MAX_TIMESTAMP = 2**63 - 1
LARGEST_LABEL = float(np.finfo(np.float32).max)
"""Largest absolute value of fractional labels, because trainings use fractional labels as float32."""
NO_LABEL = -(2**63)
"""Value in int64 columns that marks a sample without a label; no label may have this value. In float64 columns, NaN is the mark."""


def why_no_label(label: float, float_labels: bool) -> str:
    """Return the reason why a number cannot be a label, with advice. Empty: the number can be a label. Args: float_labels: the dataset has float64
    labels.

    >>> why_no_label(2**53 + 1, float_labels=True)
    'label 9007199254740993 has no exact float64, so it would be rounded; use a dataset with label_type int'
    """
    if not float_labels:
        if NO_LABEL < label < 2**63 and int(label) == label:
            return ""
        return f"label is {label}; the labels of this dataset are whole numbers of 64 bits, except the smallest one"
    if not abs(label) <= LARGEST_LABEL:  # False for NaN too.
        return f"label is {label}; send a finite number of at most {LARGEST_LABEL:.4g}, because trainings use float32"
    if isinstance(label, int) and int(float(label)) != label:
        return f"label {label} has no exact float64, so it would be rounded; use a dataset with label_type int"
    return ""


def has_label(labels: LabelArray) -> BoolArray:
    """Return for each sample whether it has a label, bool (n,). Args: labels: int64 or float64 (n,).

    >>> has_label(np.array([3, NO_LABEL])).tolist(), has_label(np.array([0.5, np.nan])).tolist()
    ([True, False], [True, False])
    """
    return ~np.isnan(labels) if labels.dtype.kind == "f" else labels != NO_LABEL


def all_labelled(labels: LabelArray) -> bool:
    """Return whether each sample of a batch has a label. Args: labels: int64 or float64 (n,).

    >>> all_labelled(np.array([3, NO_LABEL])), all_labelled(np.array([0.5, 1.5]))
    (False, True)
    """
    if labels.dtype.kind == "f":
        return not np.isnan(labels).any()
    # This is one call that keeps the GIL. NumPy would release the GIL in each operation, and threads that make batches would wait to get it back.
    return not _core.holds(labels.view(np.int64), NO_LABEL)


def keys_array(keys: Sequence[int] | Int64Array) -> Int64Array:
    """Convert sample keys to an array, int64 (n,). Raises InvalidArgumentError: keys are not whole numbers.

    >>> keys_array([3, 1]).dtype, len(keys_array([]))
    (dtype('int64'), 0)
    """
    array = np.asarray(keys)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidArgumentError(
            f"keys are whole numbers in one list or array, but these are {array.dtype} of shape {list(array.shape)}"
        )
    return array.astype(np.int64, copy=False)


class JobState(StrEnum):
    """State of a worker's job, such as a training or an evaluation. The last three states are final."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_final(self) -> bool:
        """Return whether no other state follows."""
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
    """Recent load of one prediction server, or of all servers of a run."""

    rate: float = 0.0
    """Number of answered requests per second."""
    mean_s: float = 0.0
    """Mean seconds from the arrival of a request to its answer."""
    p99_s: float = 0.0
    """The 99th percentile of the seconds from the arrival of a request to its answer."""
    num_servers: int = 0
    at: float = 0.0
    """Time at which the supervisor answered, in seconds since 1970 by its clock; 0: the supervisor was not asked."""


class VersionRole(StrEnum):
    """Role of a model version on a prediction server."""

    SERVING = "serving"
    """The version answers requests that name no version."""
    CANARY = "canary"
    """The version answers a share of the requests that name no version."""
    SHADOW = "shadow"
    """The version gets copies of requests. The server compares the answers of this version, but does not send them to clients."""
    PINNED = "pinned"
    """The version answers requests that name this version."""


@dataclass(frozen=True, slots=True)
class VersionUse:
    """A prediction server's report on one version."""

    model_id: int
    role: VersionRole
    seconds: float | None
    """Seconds for which the version has had this role. None: the version has lost the role, or is pinned."""
    latencies: Mapping[int, int]
    """Histogram of the latencies since the last received report, see `latencies.histogram`. Empty for a shadow."""


@dataclass(frozen=True, slots=True)
class StreamWindow:
    """The samples of a run's stream at positions [start, stop) whose timestamps are in `times`."""

    start: int
    stop: int
    times: Interval = Interval()
    labelled: bool = False
    """Whether positions refer to the order in which labels arrived, instead of the order of the stream."""

    def __str__(self) -> str:
        """Return the name of this window in messages."""
        times = "" if self.times == Interval() else f" at times [{self.times.start}, {self.times.end})"
        return f"[{self.start}, {self.stop}){' of the labels' * self.labelled}{times}"


@dataclass(frozen=True, slots=True)
class EvalInterval:
    """Interval [start, end) of evaluation data. anchor: the time that the interval represents (SIGMOD'25, section 3.1)."""

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
        """Return the samples whose labels arrive with the samples of this batch. If labels are not late, the result has the samples of this batch."""
        return self

    def num_labelled(self, position: int) -> int:
        """Return the number of labels that have arrived with the samples before a position of this batch."""
        return position

    def position_with(self, num_labelled: int) -> int:
        """Return the first position of this batch before which `num_labelled` labels have arrived. Without such a position, the result exceeds the
        batch's length.
        """
        return num_labelled

    def slice(self, start: int, stop: int) -> SampleBatch:
        """Return views of the samples [start, stop) of this batch."""
        return SampleBatch(self.keys[start:stop], self.timestamps[start:stop], self.labels[start:stop])

    @staticmethod
    def empty() -> SampleBatch:
        """Return a batch without samples, with int64 labels."""
        nothing = np.empty(0, np.int64)
        return SampleBatch(nothing, nothing, nothing)

    @staticmethod
    def concatenate(batches: list[SampleBatch]) -> SampleBatch:
        """Join batches in order."""
        if not batches:
            return SampleBatch.empty()
        return SampleBatch(
            np.concatenate([b.keys for b in batches]),
            np.concatenate([b.timestamps for b in batches]),
            np.concatenate([b.labels for b in batches]),
        )


@dataclass(frozen=True, slots=True)
class DeletedSamples:
    """The deleted samples of a data file that is indexed again."""

    dataset: str
    identity: str
    """Identity of the registered dataset."""
    path: str
    """The data file, as the caller named it."""
    num_samples: int
    first_key: int | None
    """Smallest key of the deleted samples; None: no sample was deleted."""


@dataclass(frozen=True, slots=True)
class RunRegistration:
    """The facts about a run from which the selector selects trigger sets."""

    run_id: RunId
    dataset: str
    """Name of the dataset of the keys."""
    selection_strategy: Mapping[str, Any]
    """Section `selection_strategy` of the pipeline."""
    seed: int
    """Seed of all random choices of the selection."""
    data: Mapping[str, Any] | None = None
    """Section `data` of the pipeline, for readers of trigger sets without access to the pipeline. A later registration does not change this value."""
    dataset_identity: str = ""
    """Identity of the dataset of the keys (`DatasetInfo.identity`). Triggers and readers refuse another dataset of the same name. An empty identity
    accepts any dataset."""
    online: Mapping[str, Any] | None = None
    """Section `online` of the pipeline, or None."""

    def is_equal(self, other: RunRegistration) -> bool:
        """Return whether both describe the same run, apart from `data`."""
        return replace(self, data=other.data) == other


@dataclass(frozen=True, slots=True)
class TriggerSetInfo:
    """Header of a trigger set. Partition p contains positions [p·size, (p+1)·size) of the set."""

    run_id: RunId
    trigger_id: int
    num_keys: int
    partition_size: int
    keys_checksum: str
    """SHA-256 of the keys as little-endian int64. Two trigger sets are equal if and only if their checksums are equal."""
    dataset_identity: str = ""
    """Identity of the registered dataset to which the keys belong; empty: not known."""
    feedback: tuple[str, ...] = ()
    """Names of the scores that the selection requests from the training."""

    @property
    def num_partitions(self) -> int:
        """Return the number of partitions of the set; the last partition may be shorter."""
        return -(-self.num_keys // self.partition_size)


@dataclass(frozen=True, slots=True, eq=False)
class KeysAndWeights:
    """Keys and weights of samples of a trigger set. keys: int64 (n,); weights: float32 (n,)."""

    keys: Int64Array
    weights: Float32Array

    def __len__(self) -> int:
        return len(self.keys)

    @staticmethod
    def unweighted(keys: Int64Array) -> KeysAndWeights:
        """Return the keys, each with weight 1. The weights are a read-only view of one number."""
        return KeysAndWeights(keys, np.broadcast_to(np.float32(1), keys.shape))

    @staticmethod
    def concatenate(parts: Sequence[KeysAndWeights]) -> KeysAndWeights:
        """Join the keys and weights of all parts, in order."""
        return KeysAndWeights(
            np.concatenate([np.empty(0, np.int64), *(part.keys for part in parts)]),
            np.concatenate([np.empty(0, np.float32), *(part.weights for part in parts)]),
        )


OTHER_CLASSES = "others"
"""Name for all classes that the record of a training does not count separately."""


@dataclass(frozen=True, slots=True)
class ClassCount:
    """Number of samples of one class (label) among the candidates of a trigger, and among the chosen samples."""

    label: int
    candidates: int
    chosen: int


@dataclass(frozen=True, slots=True)
class SelectionSummary:
    """Candidates and chosen samples of a trigger.

    num_shared: number of chosen samples that the previous trigger also chose. num_classes: number of different labels among the candidates; 0: labels
    are not classes. classes: the classes with the most candidates, by label. ages, candidate_ages (seconds before the newest candidate) and weights:
    minimum, quartiles, maximum.
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
    """A stored model: the result of a trigger of a run, or an imported model (then run_id is empty)."""

    model_id: int
    run_id: RunId
    trigger_id: int
    parent_id: int | None
    weights_sha256: str
    """Hash of tensor names, dtypes, shapes and bytes, in order of name. Equal models have equal hashes in all file formats."""
    num_bytes: int
    created_at: float
    strategy: str
    promoted: bool
    base_id: int | None = None
    """Id of the version that the stored file is a difference to; None: the version is stored whole."""
    encode_s: float = 0.0
    """Seconds that model storage took to make the file, without waits for the disk."""
    full_bytes: int = 0
    """Bytes of the version if it was stored whole."""
    full_encode_s: float = 0.0
    """See `encode_s`, for the version stored whole."""


DOWNSAMPLING_SCORE = "downsampling_score"
"""Name of the score by which a training chose a sample. The value of this score is NaN if the policy has no score, or a score of several numbers."""
DOWNSAMPLING_WEIGHT = "downsampling_weight"
"""Name of the weight with which a chosen sample counts in its training."""


@dataclass(frozen=True, slots=True)
class FeedbackHeader:
    """Header of a training's scores: `num_rows` samples, in the order in which the training saw them.

    keys_checksum: checksum of the trigger set. attempt: number that increases with each attempt at the training. widths: number of values of each
    score, by name.
    """

    run_id: RunId
    trigger_id: int
    keys_checksum: str
    attempt: int
    num_rows: int
    widths: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class FeedbackRows:
    """Scores of n samples. keys: int64 (n,). epochs: int32 (n,), from 0. scores: float32 (n, width) by name; NaN if missing."""

    keys: Int64Array
    epochs: Int32Array
    scores: Mapping[str, Float32Array]

    def __len__(self) -> int:
        return len(self.keys)

    def slice(self, start: int, stop: int) -> FeedbackRows:
        """Return views of the rows [start, stop)."""
        scores = {name: values[start:stop] for name, values in self.scores.items()}
        return FeedbackRows(self.keys[start:stop], self.epochs[start:stop], scores)
