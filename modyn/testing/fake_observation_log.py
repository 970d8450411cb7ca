"""A log of observations in memory."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

from modyn.errors import InvalidArgumentError, UnavailableError
from modyn.serving.observation_join import Appended, ObservationRecord, fingerprint


class FakeObservationLog:
    """Keeps `records` by key, each once. While `is_away`, it takes none; never those in `refused`, by key with the reason, nor a label of `wrong`.
    It answers nothing until `answers` is set, as it is at the begin."""

    def __init__(self) -> None:
        self.records: dict[str, ObservationRecord] = {}
        self.refused: dict[str, str] = {}
        self.wrong: set[float] = set()
        self.is_away = False
        self.answers = Event()
        self.answers.set()

    def check_label(self, label: float | int) -> None:
        """Raise InvalidArgumentError for a label of `wrong`."""
        if label in self.wrong:
            raise InvalidArgumentError(f"label {label!r} is none of this log; send another one")

    def append(self, records: Sequence[ObservationRecord]) -> Appended:
        """Keep the records. Raises UnavailableError while it is away."""
        self.answers.wait()
        if self.is_away:
            raise UnavailableError("the log of observations cannot be reached; try again later")
        found = [record for record in records if record.key in self.records]
        reused = {each.key for each in found if fingerprint(each.features) != fingerprint(self.records[each.key].features)}
        known = {each.key: self.records[each.key].label for each in found if each.key not in reused}
        refused = {record.key: self.refused[record.key] for record in records if record.key in self.refused}
        for record in records:
            if record.key not in refused:
                self.records.setdefault(record.key, record)
        return Appended(known, refused, frozenset(reused))
