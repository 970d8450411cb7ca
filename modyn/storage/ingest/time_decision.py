"""Decides whether numbers are seconds. Times that look like years, months or days (YYMMDD) are refused, unless the dataset counts seconds from 0."""

from __future__ import annotations

from modyn.errors import DataError
from modyn.storage.formats.timestamps import TimeRange
from modyn.storage.ingest.open_dataset import OpenDataset


class TimeDecision:
    """Compares the times of each new file with the times of the dataset, during one ingestion."""

    def __init__(self, dataset: OpenDataset) -> None:
        self._are_digits = dataset.format.times_are_digits
        self._others = dataset.snapshot().index.time_range

    def why_refused(self, times: TimeRange | None) -> str:
        """Return why new samples with these times are refused, and what to do; empty: the samples are not refused."""
        return times.why_no_seconds(self._others) if self._are_digits and times is not None else ""

    def check(self, path: str, times: TimeRange | None) -> None:
        """Refuse the new samples of a file if `why_refused` gives a reason. Args: path: full path. Raises: DataError."""
        if reason := self.why_refused(times):
            raise DataError(f"{path}: {reason}")

    def note(self, times: TimeRange | None) -> None:
        """Record the times of added samples."""
        if times is not None:
            earliest, latest = self._others or (times.earliest, times.latest)
            self._others = min(earliest, times.earliest), max(latest, times.latest)
