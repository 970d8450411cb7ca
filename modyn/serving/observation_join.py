"""Joins labels with the features of the predictions that they belong to, by request id, within bounds: without threads, clock and log.

A label may come before its features or after them, may come again, or may never come.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from modyn.errors import AlreadyExistsError
from modyn.serving.signature import Tensors

_OVERHEAD: Final = 300
"""Bytes that a prediction takes in memory beside its tensors, about."""


@dataclass(frozen=True, slots=True)
class JoinLimits:
    """How much waits for its other half, and for how long."""

    max_features: int = 100_000
    """Predictions without a label; the oldest are dropped."""
    max_labels: int = 100_000
    """Labels without a prediction; the oldest are dropped."""
    max_bytes: int = 256 * 2**20
    """Of the features that wait; the oldest are dropped."""
    max_done: int = 100_000
    """Observations that are remembered, so that one that comes again counts once. The log compares keys as well."""
    keep_s: float = 86_400.0
    """What has waited so long expires."""


@dataclass(frozen=True, slots=True)
class RequestFeatures:
    """What a prediction was made from."""

    inputs: Tensors = field(repr=False)
    model: str = ""
    version: str = ""
    """The one that answered; empty: the features came with the label."""


def num_bytes(features: RequestFeatures) -> int:
    """The bytes that features take in memory, about."""
    return _OVERHEAD + sum(
        sum(len(value) for value in values.ravel() if value is not None) + 8 * values.size
        if values.dtype == object
        else values.nbytes
        for values in features.inputs.values()
    )


def num_rows(features: RequestFeatures) -> int:
    """The rows of a request. A label belongs to a request of one."""
    return max((len(values) for values in features.inputs.values() if values.ndim), default=1)


@dataclass(frozen=True, slots=True)
class ObservationRecord:
    """A labelled sample."""

    key: str
    """Idempotency key: the request id, or the key that came with the features. The log takes each key once."""
    features: RequestFeatures
    label: float | int
    observed_at: float
    """Seconds since 1970, when the label came."""


class JoinEventKind(StrEnum):
    """What `ObservationJoin` is called with."""

    PREDICTED = "p"
    LABELLED = "l"
    COMPLETE = "c"
    DONE = "d"


@dataclass(frozen=True, slots=True)
class JoinEvent:
    """One call of the join, as it is kept on disk: the calls in their order make its state again."""

    kind: JoinEventKind
    key: str
    at: float
    """Seconds since 1970."""
    label: float | int | None = None
    """None: PREDICTED has none."""
    features: RequestFeatures | None = None
    """Of PREDICTED and COMPLETE."""


@dataclass(slots=True)
class JoinCounts:
    """What has become of labels and features since the start."""

    joined: int = 0
    repeated: int = 0
    """Labels that came again, with the same value."""
    expired_features: int = 0
    expired_labels: int = 0
    dropped_features: int = 0
    dropped_labels: int = 0


@dataclass(frozen=True, slots=True)
class _Label:
    value: float | int
    came: float


class ObservationJoin:
    """Rule: features and a label of one request id make one record. It stays open until `done`, so that a log that fails loses none.

    Not for several threads. `now` is in seconds since 1970 and never falls.
    """

    def __init__(self, limits: JoinLimits) -> None:
        self._limits = limits
        self.counts = JoinCounts()
        self._features: OrderedDict[str, tuple[RequestFeatures, float]] = OrderedDict()
        self._bytes = 0  # of the features above
        self._labels: OrderedDict[str, _Label] = OrderedDict()
        self._ready: OrderedDict[str, ObservationRecord] = OrderedDict()
        self._done: OrderedDict[str, float | int] = OrderedDict()

    @property
    def num_waiting_features(self) -> int:
        """Predictions without a label."""
        return len(self._features)

    @property
    def num_waiting_bytes(self) -> int:
        """Bytes of predictions without a label, about."""
        return self._bytes

    @property
    def num_waiting_labels(self) -> int:
        """Labels without a prediction."""
        return len(self._labels)

    def predicted(self, request_id: str, features: RequestFeatures, now: float) -> None:
        """Take the features of a prediction. An id that is used again keeps those of the first prediction."""
        if request_id in self._features or request_id in self._ready or request_id in self._done:
            return
        if (label := self._labels.pop(request_id, None)) is not None:
            self._make_ready(ObservationRecord(request_id, features, label.value, label.came))
            return
        self._features[request_id] = (features, now)
        self._bytes += num_bytes(features)
        while len(self._features) > self._limits.max_features or self._bytes > self._limits.max_bytes:
            self._drop_features(next(iter(self._features)))
            self.counts.dropped_features += 1

    def labelled(self, request_id: str, label: float | int, now: float) -> bool:
        """Take a label. Returns whether it is new: False for one that came before with the same value.

        Raises: AlreadyExistsError: another label of this id came before.
        """
        if self._came_before(request_id, label):
            return False
        if (found := self._drop_features(request_id)) is not None:
            self._make_ready(ObservationRecord(request_id, found, label, now))
            return True
        self._labels[request_id] = _Label(label, now)
        if len(self._labels) > self._limits.max_labels:
            self._labels.popitem(last=False)
            self.counts.dropped_labels += 1
        return True

    def complete(self, key: str, features: RequestFeatures, label: float | int, now: float) -> bool:
        """Take a label that came with its features. Returns and raises as `labelled`."""
        waiting = self._labels.get(key)  # The same label without features has only half of what comes now.
        if (waiting is None or waiting.value != label) and self._came_before(key, label):
            return False
        self._labels.pop(key, None)
        self._drop_features(key)
        self._make_ready(ObservationRecord(key, features, label, now))
        return True

    def knows(self, key: str) -> bool:
        """Whether features or a label of this key have come, and are remembered."""
        return any(key in found for found in (self._features, self._labels, self._ready, self._done))

    def ready(self) -> list[ObservationRecord]:
        """Return the records that are to be appended to the log, the oldest first."""
        return list(self._ready.values())

    def done(self, records: list[ObservationRecord], stored: Mapping[str, float | int] | None = None) -> None:
        """Note that the log has these records. Args: stored: by key the labels that it has, where they are other ones."""
        for record in records:
            if self._ready.pop(record.key, None) is not None:
                self._note_done(record.key, (stored or {}).get(record.key, record.label))
                self.counts.joined += 1

    def expire(self, now: float) -> None:
        """Drop what has waited for longer than the limits allow."""
        before = now - self._limits.keep_s
        while self._features and next(iter(self._features.values()))[1] <= before:
            self._drop_features(next(iter(self._features)))
            self.counts.expired_features += 1
        while self._labels and next(iter(self._labels.values())).came <= before:
            self._labels.popitem(last=False)
            self.counts.expired_labels += 1

    def replay(self, event: JoinEvent) -> None:
        """Do again what was done before a restart."""
        try:
            match event:
                case JoinEvent(JoinEventKind.PREDICTED, key, at, _, RequestFeatures() as features):
                    self.predicted(key, features, at)
                case JoinEvent(JoinEventKind.LABELLED, key, at, int() | float() as label, _):
                    self.labelled(key, label, at)
                case JoinEvent(JoinEventKind.COMPLETE, key, at, int() | float() as label, RequestFeatures() as features):
                    self.complete(key, features, label, at)
                case JoinEvent(JoinEventKind.DONE, key, _, int() | float() as label, _):
                    self._ready.pop(key, None)
                    self._labels.pop(key, None)
                    self._drop_features(key)
                    self._note_done(key, label)
        except AlreadyExistsError:  # Its client has had this answer; the first label counts.
            return

    def events(self) -> Iterator[JoinEvent]:
        """Yield the fewest events that make this state."""
        for key, label in self._done.items():
            yield JoinEvent(JoinEventKind.DONE, key, 0.0, label)
        for record in self._ready.values():
            yield JoinEvent(JoinEventKind.COMPLETE, record.key, record.observed_at, record.label, record.features)
        for key, (features, at) in self._features.items():
            yield JoinEvent(JoinEventKind.PREDICTED, key, at, None, features)
        for key, waiting in self._labels.items():
            yield JoinEvent(JoinEventKind.LABELLED, key, waiting.came, waiting.value)

    def _drop_features(self, key: str) -> RequestFeatures | None:
        found = self._features.pop(key, None)
        if found is None:
            return None
        self._bytes -= num_bytes(found[0])
        return found[0]

    def _note_done(self, key: str, label: float | int) -> None:
        self._done[key] = label
        while len(self._done) > self._limits.max_done:
            self._done.popitem(last=False)

    def _came_before(self, key: str, label: float | int) -> bool:
        known: Mapping[str, Any] = self._labels
        if key in self._done:
            before = self._done[key]
        elif key in self._ready:
            before = self._ready[key].label
        elif key in known:
            before = self._labels[key].value
        else:
            return False
        if before != label:
            raise AlreadyExistsError(
                f"observation '{key}' came before with the label {before!r}, now with {label!r}; the first one counts"
            )
        self.counts.repeated += 1
        return True

    def _make_ready(self, record: ObservationRecord) -> None:
        self._ready[record.key] = record
