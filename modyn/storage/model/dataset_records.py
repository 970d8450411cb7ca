"""Records about datasets. Packages outside storage import them from `modyn.storage.client`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from modyn.config.dataset import DatasetConfig
from modyn.records import Int64Array, SampleBatch
from modyn.storage.model.schema import DatasetSchema

RECORDS_FOLDER = "records"
"""Name of the record log in the folder of a dataset's index."""


def located(config: DatasetConfig, folder: Path) -> DatasetConfig:
    """Return the registration, with the folder of the dataset's files as `base_path`. For a dataset of records, the files are in a subfolder of
    `folder`, the folder of the index."""
    return config.model_copy(update={"base_path": str(folder.absolute() / RECORDS_FOLDER)}) if config.holds_records else config


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """A registered dataset and the extent of its index."""

    config: DatasetConfig
    identity: str
    """UUID of this registration. Keys are valid only for this identity: a dataset that is registered later under the same name has other keys and
    another identity."""
    num_samples: int
    """Number of samples, without deleted samples."""
    num_files: int
    num_problems: int
    next_key: int
    """Key of the next new sample: keys 0 … next_key - 1 exist or were deleted."""
    min_timestamp: int | None
    """Seconds since 1970; None while nothing is indexed. Deleted samples are included in `min_timestamp` and `max_timestamp`."""
    max_timestamp: int | None
    num_deleted: int
    float_labels: bool
    num_skipped: int = 0
    """Number of unusable rows in the dataset's files. An unusable row has no sample."""
    schema: DatasetSchema | None = None
    """The columns of the dataset's files, and its classes; None: no file was indexed yet, or there are neither. Lists of datasets omit the schema."""
    num_labels: int = 0
    """Number of late labels, which arrived after their samples."""
    num_unlabelled: int = 0
    """Number of samples without a label, including deleted samples."""

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self.config.name

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, see `DatasetSchema.classes`."""
        return self.schema.classes if self.schema else ()


@dataclass(frozen=True, slots=True)
class IngestProgress:
    """Progress of one ingestion, counted from its start."""

    files_seen: int = 0
    files_indexed: int = 0
    samples_indexed: int = 0
    problems: int = 0
    finished: bool = False


@dataclass(frozen=True, slots=True)
class SamplePlace:
    """The location of a sample: file, offset and length."""

    key: int
    path: str
    offset: int
    """Bytes from the start of the file; in a Parquet file, the number of the row."""
    num_bytes: int
    label: int | float
    """The label; int if the labels of the dataset are whole numbers, else float."""
    timestamp: int
    """Seconds since 1970."""

    def __str__(self) -> str:
        return f"{self.path} at {self.offset}"


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A damaged file of the index, or a data file that was set aside or changed after it was indexed. Ingestion tries data files again later."""

    path: str
    reason: str
    found_at: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """Progress of a scrub of a dataset."""

    files_seen: int = 0
    """Number of all data files of the dataset, without the files of its index."""
    files_compared: int = 0
    """Number of data files whose indexed bytes were read and compared."""
    files_first: int = 0
    """Number of files in `files_compared` that no scrub had read before. Of these files, only the bytes under the fingerprint were compared."""
    problems: tuple[FileProblem, ...] = ()
    """Problems found since the previous step: damaged files of the index, and changed data files."""


MOST_RECORDS = 10_000
"""Largest number of records that are appended with one call."""


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record that a client appends to a dataset of records."""

    key: str
    """Idempotency key, 1 to 128 characters, chosen by the client: only the first record with a key ever counts."""
    payload: bytes
    label: float | None
    """A whole number of 64 bits, or a fraction if the labels of the dataset are fractions; None: the label comes later, by `set_labels`."""
    timestamp: int | None = None
    """Seconds since 1970; None: the time of arrival. A number that is probably a date (20130131) or in another unit is refused. Numbers such as 2013,
    201301 or 240301 are refused if all times of a call are such numbers. Both rules also apply to times in files. The dataset option
    `timestamp_format: s` switches both rules off."""


@dataclass(frozen=True, slots=True, eq=False)
class LateLabelBatch:
    """Samples with late labels, in the order in which the labels arrived. `first`: number of the first label among all late labels of the dataset."""

    first: int
    samples: SampleBatch
    deleted: npt.NDArray[np.bool_]
    """bool (n,): which of the samples are deleted."""

    @property
    def end(self) -> int:
        """Number after the number of the last label."""
        return self.first + len(self.samples)

    def slice(self, start: int, stop: int) -> LateLabelBatch:
        """Return the labels [start, stop) of this batch, as views."""
        return LateLabelBatch(self.first + start, self.samples.slice(start, stop), self.deleted[start:stop])


@dataclass(frozen=True, slots=True)
class AppendedRecord:
    """The answer for one record that a client appended, or for one label that a client sent."""

    sample_key: int
    """Key of the sample that the record becomes. For a duplicate: key of the sample of the first record with the same idempotency key."""
    is_duplicate: bool = False
    """Whether a record with the same idempotency key was appended before. A duplicate is dropped."""
    differs: bool = False
    """Whether the first record with the key has another payload, label or time."""


@dataclass(frozen=True, slots=True, eq=False)
class ColumnValues:
    """The values of n samples in a column, as text. Sample i has `values[numbers[i]]`, or no value if its number is -1.

    values: each distinct value once. numbers: int64 (n,).
    """

    values: list[str]
    numbers: Int64Array

    def __len__(self) -> int:
        return len(self.numbers)

    def slice(self, start: int, stop: int) -> ColumnValues:
        """Return the samples [start, stop). `values` of the result has only the values of these samples."""
        found, numbers = np.unique(self.numbers[start:stop], return_inverse=True)
        missing = int(len(found) > 0 and found[0] < 0)
        return ColumnValues([self.values[number] for number in found[missing:].tolist()], numbers.astype(np.int64) - missing)

    def texts(self) -> list[str | None]:
        """Return the value of each sample; None: the sample has no value."""
        return [None if number < 0 else self.values[number] for number in self.numbers.tolist()]
