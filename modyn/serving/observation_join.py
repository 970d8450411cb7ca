"""Joins labels with the features of the predictions that they belong to, by request id, within bounds: without threads, clock and log.

A label may come before its features or after them, may come again, or may never come.
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
from modyn.serving.signature import Tensors

_WAITING_BYTES: Final = 450
"""That what waits takes in memory beside its tensors, about; a tensor takes `_TENSOR_BYTES` beside its values, a text `_TEXT_BYTES`."""
_TENSOR_BYTES: Final = 180
_TEXT_BYTES: Final = 40


@dataclass(frozen=True, slots=True)
class JoinLimits:
    """How much waits for its other half, and for how long."""

    max_bytes: int = 256 * 2**20
    """Of predictions and labels that wait, in memory; the oldest are dropped."""
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
    return _WAITING_BYTES + sum(
        _TENSOR_BYTES
        + (sum(_TEXT_BYTES + len(value or b"") for value in values.ravel()) if values.dtype == object else values.nbytes)
        for values in features.inputs.values()
    )


def fingerprint(features: RequestFeatures) -> int:
    """Return a hash of the inputs, of 64 bits: the same in each process."""
    digest = hashlib.blake2b(digest_size=8)
    for name, values in sorted(features.inputs.items()):
        digest.update(f"{name}\0{values.dtype.str}{values.shape}".encode())
        digest.update(repr(values.tolist()).encode() if values.dtype == object else np.ascontiguousarray(values).tobytes())
    return int.from_bytes(digest.digest())


def _are_others(before: int, features: RequestFeatures) -> bool:
    """Whether inputs are not those of a fingerprint. Args: before: 0: not known, of a development version that kept none."""
    return before not in (0, fingerprint(features))


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


@dataclass(frozen=True, slots=True)
class Appended:
    """What a log did with records. Those in no field are new in it."""

    known: Mapping[str, float | int] = field(default_factory=dict)
    """By key the label that the log had already: the same one, or another."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By key why the log will never take it."""
    reused: frozenset[str] = frozenset()
    """Keys that the log has with other inputs."""
    undecided: frozenset[str] = frozenset()
    """Keys that the log has, of which it cannot say yet whether with the same inputs and label."""


class JoinEventKind(StrEnum):
    """What `ObservationJoin` is called with, and, for REUSED, what it keeps of such calls."""

    PREDICTED = "p"
    LABELLED = "l"
    COMPLETE = "c"
    DONE = "d"
    REFUSED = "r"
    REUSED = "u"


@dataclass(frozen=True, slots=True)
class JoinEvent:
    """One call of the join, as it is kept on disk: the calls in their order make its state again."""

    kind: JoinEventKind
    key: str
    at: float
    """Seconds since 1970."""
    label: float | int | None = None
    """Of LABELLED, COMPLETE and DONE."""
    features: RequestFeatures | None = None
    """Of PREDICTED and COMPLETE."""
    fingerprint: int = 0
    """Of the inputs of DONE."""


@dataclass(slots=True)
class JoinCounts:
    """What has become of labels and predictions since the start."""

    joined: int = 0
    expired: int = 0
    dropped_predictions: int = 0
    dropped_labels: int = 0
    reused: int = 0
    """Request ids that came with other inputs than before."""
    reused_id: str = ""
    """The newest of these."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A prediction without a label, a label without a prediction, or, with neither, a request id of several predictions."""

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
    """Rule: features and a label of one request id make one record. It stays open until `done`, so that a log that fails loses none.

    An id that comes again with other inputs gets no label: which prediction it would be of is not known. Not for several threads. `now` is in
    seconds since 1970 and never falls; what has waited too long by then is gone.
    """

    def __init__(self, limits: JoinLimits) -> None:
        self._limits = limits
        self.counts = JoinCounts()
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        self._bytes = 0  # of those above
        self._ready: OrderedDict[str, ObservationRecord] = OrderedDict()
        self._done: OrderedDict[str, tuple[float | int, int]] = OrderedDict()  # label and fingerprint of the inputs

    @property
    def num_waiting(self) -> int:
        """Predictions without a label, labels without a prediction, and ids that were used again."""
        return len(self._waiting)

    @property
    def num_waiting_bytes(self) -> int:
        """Bytes of these in memory, about."""
        return self._bytes

    def predicted(self, request_id: str, features: RequestFeatures, now: float) -> None:
        """Take the features of a prediction. The same ones again, as of a request that is repeated, change nothing."""
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

    def labelled(self, request_id: str, label: float | int, now: float) -> None:
        """Take a label. One that came before with the same value changes nothing.

        Raises: AlreadyExistsError: another label of this id came before. ConflictError: the id is that of several predictions, and this label did not
        come before they were.
        """
        self.expire(now)
        waiting = self._waiting.get(request_id)
        # With the label that came before the other inputs, it is that one, sent again.
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
        """Take a label that came with its features. Raises AlreadyExistsError: another label, or other inputs, came before with this key."""
        self.expire(now)
        if self._came_before(key, label, features):
            return
        self._forget(key)
        self._make_ready(ObservationRecord(key, features, label, now))

    def is_done(self, key: str) -> bool:
        """Whether the log has an observation with this key, as far as that is remembered."""
        return key in self._done

    def knows(self, key: str) -> bool:
        """Whether features or a label of this key have come, and are remembered."""
        return any(key in found for found in (self._waiting, self._ready, self._done))

    def ready(self) -> list[ObservationRecord]:
        """Return the records that are to be appended to the log, the oldest first."""
        return list(self._ready.values())

    def done(self, records: list[ObservationRecord], appended: Appended) -> list[JoinEvent]:
        """Note what the log did with records; those that it refused are forgotten, and ids that it has with other inputs get no label.

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
        """Drop what has waited for longer than the limits allow."""
        before = now - self._limits.keep_s
        while self._waiting and next(iter(self._waiting.values())).came <= before:
            self._forget(next(iter(self._waiting)))
            self.counts.expired += 1

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
                case JoinEvent(JoinEventKind.REUSED, key, at):
                    self._wait(key, _Waiting(at))
                case JoinEvent(JoinEventKind.DONE | JoinEventKind.REFUSED, key):
                    if key in self._waiting and not self._waiting[key].is_reused_id:
                        self._forget(key)  # Its other half could not be kept on disk.
                    self._end(event)
        except (AlreadyExistsError, ConflictError):  # Its client has had this answer.
            return

    def events(self) -> Iterator[JoinEvent]:
        """Yield the fewest events that make this state."""
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
        """Let an id of several inputs get no label."""
        self.counts.reused += 1
        self.counts.reused_id = key
        self._wait(key, _Waiting(now))

    def _forget(self, key: str) -> None:
        """Take out what waits for its other half, if it is there."""
        if (found := self._waiting.pop(key, None)) is not None:
            self._bytes -= found.num_bytes

    def _end(self, event: JoinEvent) -> None:
        """Take out a record that the log has or refuses."""
        self._ready.pop(event.key, None)
        if event.label is not None:
            self._done[event.key] = (event.label, event.fingerprint)
            while len(self._done) > self._limits.max_done:
                self._done.popitem(last=False)

    def _fingerprint_of(self, key: str) -> int | None:
        """Of the inputs that came with this key; None: none have."""
        if key in self._done:
            return self._done[key][1]
        if key in self._ready:
            return fingerprint(self._ready[key].features)
        features = self._waiting[key].features if key in self._waiting else None
        return None if features is None else fingerprint(features)

    def _label_of(self, key: str) -> float | int | None:
        """That came with this key; None: none has."""
        if key in self._done:
            return self._done[key][0]
        if key in self._ready:
            return self._ready[key].label
        return self._waiting[key].label if key in self._waiting else None

    def _came_before(self, key: str, label: float | int, features: RequestFeatures | None = None) -> bool:
        """Whether the same label came, with the same features if these are given. Raises AlreadyExistsError: another one did."""
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
        return inputs is not None  # A label that waits for its prediction is half of what comes now.

    def _make_ready(self, record: ObservationRecord) -> None:
        self._ready[record.key] = record
