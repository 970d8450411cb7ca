"""An in-memory log of observations."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

from modyn.errors import InvalidArgumentError, UnavailableError
from modyn.serving.observations.join import Appended, ObservationRecord, fingerprint


class FakeObservationLog:
    """Stores each record once, in `records` by key. While `is_away` is true, the log accepts no record. The log never accepts records whose keys
    are in `refused` (reasons by key), nor labels in `wrong`. Calls wait until `answers` is set; `answers` is set initially.
    """

    def __init__(self) -> None:
        self.records: dict[str, ObservationRecord] = {}
        self.refused: dict[str, str] = {}
        self.wrong: set[float] = set()
        self.is_away = False
        self.answers = Event()
        self.answers.set()

    def check_label(self, label: float | int) -> None:
        """Raise InvalidArgumentError for a label in `wrong`."""
        if label in self.wrong:
            raise InvalidArgumentError(f"this log accepts no label {label!r}; send another one")

    def append(self, records: Sequence[ObservationRecord]) -> Appended:
        """Keep the records. Raises UnavailableError while `is_away` is true."""
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
