"""A log of observations in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from modyn.errors import UnavailableError
from modyn.serving.observation_join import ObservationRecord


class FakeObservationLog:
    """Keeps `records` by key, each once. While `is_away`, it takes none."""

    def __init__(self) -> None:
        self.records: dict[str, ObservationRecord] = {}
        self.is_away = False

    def append(self, records: Sequence[ObservationRecord]) -> Mapping[str, float | int]:
        """Keep the records; returns other labels that it has. Raises UnavailableError while it is away."""
        if self.is_away:
            raise UnavailableError("the log of observations cannot be reached; try again later")
        labels = {record.key: self.records.setdefault(record.key, record).label for record in records}
        return {record.key: labels[record.key] for record in records if labels[record.key] != record.label}
