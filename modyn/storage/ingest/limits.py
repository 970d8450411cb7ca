"""Bounds of an ingestion."""

from __future__ import annotations

from dataclasses import dataclass

from modyn.storage.formats.base import CHUNK_ROWS
from modyn.storage.index.segment_file import SEGMENT_ROWS


@dataclass(frozen=True, slots=True)
class IngestLimits:
    """Bounds of memory and waiting of one ingestion."""

    held_samples: int = CHUNK_ROWS
    """Largest number of samples of one file that are held in memory. The segments of a larger file are written as they fill."""
    segment_rows: int = SEGMENT_ROWS
    """Largest number of samples of a segment."""
    growing_bytes: int = 16 << 20
    """Files of this size or more may grow while they are indexed. To index such a file may take longer than the pauses between two appends, so an
    ingestion that waits for a pause could wait forever."""
    files_at_once: int = 1 << 14
    """Number of files of one sample that are indexed with one call. This number bounds the memory that the files need in addition to the listing."""
    flush_files: int = 1 << 15
    """Number of new files that are committed together. This number bounds their memory. The database commits them while the next files are read."""
    flush_s: float = 1.0
    """Seconds for which samples of complete files wait for others to share their segment."""
    merge_run: int = 16
    """Number of neighbouring segments of about one size that are merged. A sample is rewritten once for each factor of 16, at most five times."""
    lock_wait_s: float = 600.0
    """Seconds for which an ingestion on request waits for another one of the same dataset."""
    unpacked_bytes: int = 1 << 36
    """Largest number of bytes of unpacked copies of compressed files."""
    future_tolerance_s: float | None = None
    """Seconds in the future beyond which samples are refused; None: no bound."""
