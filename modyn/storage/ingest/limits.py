"""Bounds of an ingestion."""

from __future__ import annotations

from dataclasses import dataclass

from modyn.storage.formats.base import CHUNK_ROWS
from modyn.storage.index.segment_file import SEGMENT_ROWS


@dataclass(frozen=True, slots=True)
class IngestLimits:
    """Bounds of memory and waiting of one ingestion."""

    held_samples: int = CHUNK_ROWS
    """A file with more samples is not held in memory: its segments are written as they fill."""
    segment_rows: int = SEGMENT_ROWS
    """Most samples of a segment."""
    growing_bytes: int = 16 << 20
    """Files of this size or more may be appended to while they are indexed, which may take longer than the pauses between appends: waiting for
    a pause could last for ever."""
    files_at_once: int = 1 << 14
    """Files of one sample that are indexed with one call: bounds what is held of them beside the listing."""
    flush_files: int = 1 << 15
    """New files that are committed together: bounds what is held of them, and the database works while the next ones are read."""
    flush_s: float = 1.0
    """Samples of complete files wait for at most so long for others to share their segment."""
    merge_run: int = 16
    """Neighbouring segments of about one size that become one: a sample is rewritten once per factor of 16, five times at most."""
    lock_wait_s: float = 600.0
    """How long an ingestion on request waits for another one of the same dataset."""
    unpacked_bytes: int = 1 << 36
    """Most bytes of unpacked copies of compressed files."""
    future_tolerance_s: float | None = None
    """Samples that lie further in the future are not taken; None: they are."""
