"""Records about datasets; other rooms import them from `modyn.storage.client`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from modyn.config.dataset import DatasetConfig
from modyn.records import Int64Array, SampleBatch
from modyn.storage.model.schema import DatasetSchema

RECORDS_FOLDER = "records"
"""Of the record log, in the folder of a dataset's index."""


def located(config: DatasetConfig, folder: Path) -> DatasetConfig:
    """The registration with the folder of the files as its `base_path`: of a dataset of records, one in `folder`, that of its index."""
    return config.model_copy(update={"base_path": str(folder.absolute() / RECORDS_FOLDER)}) if config.holds_records else config


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """A registered dataset and the extent of its index."""

    config: DatasetConfig
    identity: str
    """UUID of this registration. Keys have a meaning only together with it: a dataset registered later under the same name has another."""
    num_samples: int
    """Without deleted samples."""
    num_files: int
    num_problems: int
    next_key: int
    """Key of the next new sample: keys 0 … next_key - 1 exist or were deleted."""
    min_timestamp: int | None
    """Seconds since 1970; None while nothing is indexed. Deleted samples still count towards both bounds."""
    max_timestamp: int | None
    num_deleted: int
    float_labels: bool
    num_skipped: int = 0
    """Rows of its files that cannot be used, of which there is no sample."""
    schema: DatasetSchema | None = None
    """The columns of its files; None: not known before the first file, or its format has none. Not in lists of datasets."""
    num_labels: int = 0
    """Labels that came after their samples."""
    num_unlabelled: int = 0
    """Samples without a label, deleted ones included."""

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self.config.name


@dataclass(frozen=True, slots=True)
class IngestProgress:
    """Progress of one ingestion; numbers count from its start."""

    files_seen: int = 0
    files_indexed: int = 0
    samples_indexed: int = 0
    problems: int = 0
    finished: bool = False


@dataclass(frozen=True, slots=True)
class SamplePlace:
    """Where a sample lies."""

    key: int
    path: str
    offset: int
    """Bytes from the start of the file; of a Parquet file the number of the row."""
    num_bytes: int
    label: int | float
    """int where the labels of the dataset are whole numbers."""
    timestamp: int
    """Seconds since 1970."""

    def __str__(self) -> str:
        return f"{self.path} at {self.offset}"


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A file that was set aside, or that changed after it was indexed, which ingestion tries again later; or a damaged file of the index."""

    path: str
    reason: str
    found_at: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """What a scrub of a dataset has done so far."""

    files_seen: int = 0
    """Data files of the dataset; the files of its index are not counted."""
    files_compared: int = 0
    """Data files whose indexed bytes were read and compared."""
    files_first: int = 0
    """Files among `files_compared` that no scrub had read before, so that only what their fingerprints cover was compared."""
    problems: tuple[FileProblem, ...] = ()
    """Those that were found since the step before: damaged files of the index, and data files that are not what was indexed."""


MOST_RECORDS = 10_000
"""Most records that are appended with one call."""


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record that a client appends to a dataset of records."""

    key: str
    """Idempotency key, 1 to 128 characters, chosen by the client: of all records with one key the first one counts, for ever."""
    payload: bytes
    label: float | None
    """A whole number of 64 bits, unless the labels of the dataset are fractions; None: it comes later, by `set_labels`."""
    timestamp: int | None = None
    """Seconds since 1970; None: the time of arrival. Digits that are most likely a date (20130131) or another unit are refused, and 2013, 201301 or
    240301 if all times of a call look so, as in files; unless the dataset counts seconds from 0."""


@dataclass(frozen=True, slots=True, eq=False)
class LateLabelBatch:
    """Samples whose labels came late, in the order in which these came; the first is number `first` of all of the dataset."""

    first: int
    samples: SampleBatch
    deleted: npt.NDArray[np.bool_]
    """bool (n,): which of the samples are deleted."""

    @property
    def end(self) -> int:
        """The number after the last."""
        return self.first + len(self.samples)

    def slice(self, start: int, stop: int) -> LateLabelBatch:
        """Labels [start, stop) of this batch, as views."""
        return LateLabelBatch(self.first + start, self.samples.slice(start, stop), self.deleted[start:stop])


@dataclass(frozen=True, slots=True)
class AppendedRecord:
    """What became of a record that a client appended, or of a label that it sent for one."""

    sample_key: int
    """Of the sample that it becomes, or that the first record with its idempotency key became."""
    is_duplicate: bool = False
    """A record with its idempotency key was appended before; this one is dropped."""
    differs: bool = False
    """That record has another payload or label, or was given another time."""


@dataclass(frozen=True, slots=True, eq=False)
class ColumnValues:
    """What n samples have in a column, as text: of sample i `values[numbers[i]]`, or nothing where its number is -1.

    values: each once. numbers: int64 (n,).
    """

    values: list[str]
    numbers: Int64Array

    def __len__(self) -> int:
        return len(self.numbers)

    def slice(self, start: int, stop: int) -> ColumnValues:
        """Samples [start, stop) of those that there are, with their values alone."""
        found, numbers = np.unique(self.numbers[start:stop], return_inverse=True)
        missing = int(len(found) > 0 and found[0] < 0)
        return ColumnValues([self.values[number] for number in found[missing:].tolist()], numbers.astype(np.int64) - missing)

    def texts(self) -> list[str | None]:
        """The value of each sample; None: it has none."""
        return [None if number < 0 else self.values[number] for number in self.numbers.tolist()]
