"""Join of labels with the features of their predictions, by request id.

Memory and waiting time are bounded. The join has no threads, no clock and no log. A label may arrive before or after the features, several times,
or never.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np

from modyn.errors import AlreadyExistsError, ConflictError
from modyn.serving.messages.signature import Tensors

_WAITING_BYTES: Final = 450
"""Estimated memory of a waiting item without its tensors, in bytes. A tensor takes `_TENSOR_BYTES` plus its values. A text takes `_TEXT_BYTES` plus
its bytes.
"""
_TENSOR_BYTES: Final = 180
_TEXT_BYTES: Final = 40


@dataclass(frozen=True, slots=True)
class JoinLimits:
    """Bounds of waiting predictions and labels."""

    max_bytes: int = 256 * 2**20
    """Largest memory of waiting predictions and labels, in bytes. Beyond this bound, the oldest items are dropped."""
    max_done: int = 100_000
    """Largest number of joined observations that are remembered, so that a repeated observation counts once. The log compares keys too."""
    keep_s: float = 86_400.0
    """Seconds after which a waiting item expires."""


@dataclass(frozen=True, slots=True)
class RequestFeatures:
    """Inputs of a prediction."""

    inputs: Tensors = field(repr=False)
    model: str = ""
    version: str = ""
    """Model version that answered; empty: the features came with the label."""


def num_bytes(features: RequestFeatures) -> int:
    """Estimate the memory of features, in bytes."""
    return _WAITING_BYTES + sum(
        _TENSOR_BYTES
        + (sum(_TEXT_BYTES + len(value or b"") for value in values.ravel()) if values.dtype == object else values.nbytes)
        for values in features.inputs.values()
    )


def fingerprint(features: RequestFeatures) -> int:
    """Return a 64-bit hash of the inputs, equal in all processes."""
    digest = hashlib.blake2b(digest_size=8)
    # Sorted, so that the order in which a client sends the inputs makes no difference.
    for name, values in sorted(features.inputs.items()):
        digest.update(f"{name}\0{values.dtype.str}{values.shape}".encode())
        digest.update(repr(values.tolist()).encode() if values.dtype == object else np.ascontiguousarray(values).tobytes())
    return int.from_bytes(digest.digest())


def _are_others(before: int, features: RequestFeatures) -> bool:
    """Whether inputs differ from the inputs that have a given fingerprint. Args: before: the fingerprint; 0: unknown, because a development version
    without fingerprints wrote the event.
    """
    return before not in (0, fingerprint(features))


def num_rows(features: RequestFeatures) -> int:
    """Return the number of rows of a request. Only a request of one row can get a label."""
    return max((len(values) for values in features.inputs.values() if values.ndim), default=1)


@dataclass(frozen=True, slots=True)
class ObservationRecord:
    """A labelled sample."""

    key: str
    """Idempotency key: the request id, or the key sent with the features. The log accepts each key only once."""
    features: RequestFeatures
    label: float | int
    observed_at: float
    """Time of the label, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Appended:
    """Answer of a log to sent records. A key that is in none of these fields is new in the log."""

    known: Mapping[str, float | int] = field(default_factory=dict)
    """Stored labels of keys that the log knew already, by key. A stored label may differ from the sent label."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Reason by key, for each record that the log will never accept."""
    reused: frozenset[str] = frozenset()
    """Keys that the log has stored with other inputs."""
    undecided: frozenset[str] = frozenset()
    """Keys that the log has stored, but whose inputs and label cannot be compared yet."""


class JoinEventKind(StrEnum):
    """Calls of `ObservationJoin`. REUSED is not a call, but a state that calls may cause."""

    PREDICTED = "p"
    LABELLED = "l"
    COMPLETE = "c"
    DONE = "d"
    REFUSED = "r"
    REUSED = "u"


@dataclass(frozen=True, slots=True)
class JoinEvent:
    """One call of the join, in the form that is stored on disk. A replay of all calls in order produces the same state."""

    kind: JoinEventKind
    key: str
    at: float
    """Seconds since 1970."""
    label: float | int | None = None
    """Set for LABELLED, COMPLETE and DONE."""
    features: RequestFeatures | None = None
    """Set for PREDICTED and COMPLETE."""
    fingerprint: int = 0
    """Fingerprint of the inputs; set for DONE."""


@dataclass(slots=True)
class JoinCounts:
    """Numbers of labels and predictions since the start, by outcome."""

    joined: int = 0
    expired: int = 0
    dropped_predictions: int = 0
    dropped_labels: int = 0
    reused: int = 0
    """Number of request ids that were used again with other inputs."""
    reused_id: str = ""
    """The newest request id that was used again with other inputs."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A waiting item: a prediction without a label, or a label without a prediction. An item with neither of them is a request id of several
    predictions."""

    came: float
    features: RequestFeatures | None = None
    label: float | int | None = None

    @property
    def is_reused_id(self) -> bool:
        return self.features is None and self.label is None

    @property
    def num_bytes(self) -> int:
        return _WAITING_BYTES if self.features is None else num_bytes(self.features)


class ObservationJoin:
    """Joins features and labels by request id. Not thread-safe.

    Rule: features and a label of one request id make one record. The record stays ready until `end`, so that no record is lost if the log fails. A
    request id that is used again with other inputs gets no label, because the id does not identify one prediction. Each call with a time `now`
    drops items that have waited too long. `now` is in seconds since 1970 and never decreases.
    """

    def __init__(self, limits: JoinLimits) -> None:
        self._limits = limits
        self.counts = JoinCounts()
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        self._bytes = 0  # estimated memory of `_waiting`
        self._ready: OrderedDict[str, ObservationRecord] = OrderedDict()
        self._done: OrderedDict[str, tuple[float | int, int]] = OrderedDict()  # by key: label and fingerprint of the inputs

    @property
    def num_waiting(self) -> int:
        """Number of predictions without a label, labels without a prediction, and reused ids."""
        return len(self._waiting)

    @property
    def num_waiting_bytes(self) -> int:
        """Estimated memory of the waiting predictions and labels, in bytes."""
        return self._bytes

    def add_prediction(self, request_id: str, features: RequestFeatures, now: float) -> None:
        """Take the features of a prediction. If the request is repeated with the same features, nothing changes."""
        self.expire(now)
        waiting = self._waiting.get(request_id)
        if waiting is not None and waiting.label is not None:
            self._forget(request_id)
            self._make_ready(ObservationRecord(request_id, features, waiting.label, waiting.came))
        elif waiting is not None and waiting.is_reused_id:
            return
        elif (before := self._fingerprint_of(request_id)) is None:
            self._wait(request_id, _Waiting(now, features))
        elif _are_others(before, features):
            self._reuse(request_id, now)

    def add_label(self, request_id: str, label: float | int, now: float) -> None:
        """Take a label. If the same label comes again, nothing changes.

        Raises: AlreadyExistsError: another label of this id arrived earlier. ConflictError: several predictions have the id, and this label did
        not arrive before the second prediction.
        """
        self.expire(now)
        waiting = self._waiting.get(request_id)
        # A label that equals the label of the first inputs is a repetition.
        if waiting is not None and waiting.is_reused_id and self._label_of(request_id) != label:
            raise ConflictError(
                f"request id '{request_id}' was used again for other inputs, so which of them the label {label!r} is of is not known; send the label "
                "with its inputs and a key of its own, and give each request an id of its own"
            )
        if self._came_before(request_id, label):
            return
        if waiting is None or waiting.features is None:
            self._wait(request_id, _Waiting(now, label=label))
        else:
            self._forget(request_id)
            self._make_ready(ObservationRecord(request_id, waiting.features, label, now))

    def complete(self, key: str, features: RequestFeatures, label: float | int, now: float) -> None:
        """Take a label with its features. Raises AlreadyExistsError: the key arrived earlier with another label or with other inputs."""
        self.expire(now)
        if self._came_before(key, label, features):
            return
        self._forget(key)
        self._make_ready(ObservationRecord(key, features, label, now))

    def is_done(self, key: str) -> bool:
        """Whether the join remembers that the log has an observation with this key."""
        return key in self._done

    def knows(self, key: str) -> bool:
        """Whether the join remembers features or a label of this key."""
        return any(key in found for found in (self._waiting, self._ready, self._done))

    def ready(self) -> list[ObservationRecord]:
        """Return the records to append to the log, the oldest first."""
        return list(self._ready.values())

    def end(self, records: list[ObservationRecord], appended: Appended) -> list[JoinEvent]:
        """Remove records after the log has answered. Refused records are forgotten. Ids that the log has stored with other inputs get no label.

        Returns: the events for `replay`.
        """
        events = []
        for record in records:
            if record.key in appended.undecided:
                continue
            is_reused = record.key in appended.reused
            if is_reused or record.key in appended.refused:
                events.append(JoinEvent(JoinEventKind.REFUSED, record.key, 0.0))
            else:
                label = appended.known.get(record.key, record.label)
                events.append(JoinEvent(JoinEventKind.DONE, record.key, 0.0, label, fingerprint=fingerprint(record.features)))
                self.counts.joined += 1
            self._end(events[-1])
            if is_reused:
                events.append(JoinEvent(JoinEventKind.REUSED, record.key, record.observed_at))
                self._reuse(record.key, record.observed_at)
        return events

    def expire(self, now: float) -> None:
        """Drop predictions and labels that have waited too long."""
        before = now - self._limits.keep_s
        # Items wait in the order of their times, so expired items come first.
        while self._waiting and next(iter(self._waiting.values())).came <= before:
            self._forget(next(iter(self._waiting)))
            self.counts.expired += 1

    def replay(self, event: JoinEvent) -> None:
        """Repeat a call that was made before a restart."""
        try:
            match event:
                case JoinEvent(JoinEventKind.PREDICTED, key, at, _, RequestFeatures() as features):
                    self.add_prediction(key, features, at)
                case JoinEvent(JoinEventKind.LABELLED, key, at, int() | float() as label, _):
                    self.add_label(key, label, at)
                case JoinEvent(JoinEventKind.COMPLETE, key, at, int() | float() as label, RequestFeatures() as features):
                    self.complete(key, features, label, at)
                case JoinEvent(JoinEventKind.REUSED, key, at):
                    self._wait(key, _Waiting(at))
                case JoinEvent(JoinEventKind.DONE | JoinEventKind.REFUSED, key):
                    if key in self._waiting and not self._waiting[key].is_reused_id:
                        self._forget(key)  # The event of the label or of the prediction is not on disk.
                    self._end(event)
        except (AlreadyExistsError, ConflictError):  # The client got this error before the restart.
            return

    def events(self) -> Iterator[JoinEvent]:
        """Yield the smallest number of events whose replay produces the current state."""
        for key, (label, inputs) in self._done.items():
            yield JoinEvent(JoinEventKind.DONE, key, 0.0, label, fingerprint=inputs)
        for record in self._ready.values():
            yield JoinEvent(JoinEventKind.COMPLETE, record.key, record.observed_at, record.label, record.features)
        for key, waiting in self._waiting.items():
            if waiting.features is not None:
                yield JoinEvent(JoinEventKind.PREDICTED, key, waiting.came, None, waiting.features)
            elif waiting.label is not None:
                yield JoinEvent(JoinEventKind.LABELLED, key, waiting.came, waiting.label)
            else:
                yield JoinEvent(JoinEventKind.REUSED, key, waiting.came)

    def _wait(self, key: str, waiting: _Waiting) -> None:
        self._forget(key)
        self._waiting[key] = waiting
        self._bytes += waiting.num_bytes
        while self._bytes > self._limits.max_bytes:
            _, dropped = self._waiting.popitem(last=False)
            self._bytes -= dropped.num_bytes
            self.counts.dropped_predictions += dropped.features is not None
            self.counts.dropped_labels += dropped.label is not None

    def _reuse(self, key: str, now: float) -> None:
        """Mark an id that was used for several inputs, so that the id gets no label."""
        self.counts.reused += 1
        self.counts.reused_id = key
        self._wait(key, _Waiting(now))

    def _forget(self, key: str) -> None:
        """Remove the waiting item of a key, if there is one."""
        if (found := self._waiting.pop(key, None)) is not None:
            self._bytes -= found.num_bytes

    def _end(self, event: JoinEvent) -> None:
        """Remove a record that the log has stored or refused."""
        self._ready.pop(event.key, None)
        # The log has the key only if the record was not refused.
        if event.label is not None:
            self._done[event.key] = (event.label, event.fingerprint)
            while len(self._done) > self._limits.max_done:
                self._done.popitem(last=False)

    def _fingerprint_of(self, key: str) -> int | None:
        """Return the fingerprint of the inputs of a key; None: the key has no inputs."""
        if key in self._done:
            return self._done[key][1]
        if key in self._ready:
            return fingerprint(self._ready[key].features)
        features = self._waiting[key].features if key in self._waiting else None
        return None if features is None else fingerprint(features)

    def _label_of(self, key: str) -> float | int | None:
        """Return the label of a key; None: the key has no label."""
        if key in self._done:
            return self._done[key][0]
        if key in self._ready:
            return self._ready[key].label
        return self._waiting[key].label if key in self._waiting else None

    def _came_before(self, key: str, label: float | int, features: RequestFeatures | None = None) -> bool:
        """Whether the same label arrived earlier. If features are given, the earlier label must have had the same features. Raises
        AlreadyExistsError: another label arrived earlier.
        """
        before = self._label_of(key)
        if before is None:
            return False
        if before != label:
            raise AlreadyExistsError(
                f"observation '{key}' came before with the label {before!r}, now with {label!r}; the first one counts"
            )
        if features is None:
            return True
        inputs = self._fingerprint_of(key)
        if inputs is not None and _are_others(inputs, features):
            raise AlreadyExistsError(
                f"observation '{key}' came before with other inputs; the first one counts: give each observation a key of its own"
            )
        # If `inputs` is None, the label waits for its prediction, and this call has the features of the prediction.
        return inputs is not None

    def _make_ready(self, record: ObservationRecord) -> None:
        self._ready[record.key] = record
