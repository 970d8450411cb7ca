"""Bounds of an ingestion."""

from __future__ import annotations

from dataclasses import dataclass

from modyn.storage.formats.base import CHUNK_ROWS
from modyn.storage.index.segment_file import SEGMENT_ROWS


@dataclass(frozen=True, slots=True)
class IngestLimits:
    """Bounds of memory and waiting of one ingestion."""

    held_samples: int = CHUNK_ROWS
    """Largest number of samples of one file that are in memory at once. The segments of a larger file are written when they are full."""
    segment_rows: int = SEGMENT_ROWS
    """Largest number of samples of a segment."""
    growing_bytes: int = 16 << 20
    """Files of at least this size may grow while they are indexed. Indexing a large file may take longer than the pauses between two appends, so an
    ingestion that waits for a pause could wait forever."""
    files_at_once: int = 1 << 14
    """Largest number of files of one sample that are indexed with one call. This number bounds the memory of an ingestion, apart from the listing."""
    flush_files: int = 1 << 15
    """Number of new files that are committed together, which bounds the memory. The database commits these files while the next files are read."""
    flush_s: float = 1.0
    """Seconds for which the samples of complete files wait for samples of other files, to be written into the same segment."""
    merge_run: int = 16
    """Number of neighbouring segments of similar size that are merged. A sample is rewritten once for each factor of 16, at most five times."""
    lock_wait_s: float = 600.0
    """Seconds for which a requested ingestion waits for another ingestion of the same dataset."""
    unpacked_bytes: int = 1 << 36
    """Largest number of bytes of unpacked copies of compressed files."""
    future_tolerance_s: float | None = None
    """Samples whose times are more than this number of seconds in the future are refused; None: no bound."""
