"""Records about datasets; other rooms import them from `modyn.storage.client`."""

from __future__ import annotations

from dataclasses import dataclass

from modyn.config.system import DatasetConfig


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
    label: float
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
