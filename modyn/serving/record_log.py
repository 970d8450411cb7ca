"""Observations as samples of a dataset: each complete one becomes a record that storage appends, once."""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from modyn.config.serving import unreadable_observations
from modyn.errors import ConfigError, InvalidArgumentError, NotFoundError
from modyn.models.classes import LabelClasses
from modyn.records import has_label, why_no_label
from modyn.rpc.logs import get_logger
from modyn.serving.observation_join import Appended, ObservationRecord
from modyn.serving.signature import Tensors
from modyn.storage.client import MOST_RECORDS, AppendedRecord, NewRecord, StorageClient

_PAUSE_S: Final = 0.05


@dataclass(slots=True)
class _Sent:
    """What became of records that were sent to storage."""

    answers: list[tuple[NewRecord, AppendedRecord]] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """By key why storage takes it at no time."""
    future_from: float = math.inf
    """From this time on, storage refuses times as in the future."""

    def timed(self, record: NewRecord) -> NewRecord:
        """The record, without a time that storage refuses."""
        is_future = record.timestamp is not None and record.timestamp >= self.future_from
        return replace(record, timestamp=None) if is_future else record


@dataclass(frozen=True, slots=True)
class _StoredSample:
    """What storage has of a sample beside its payload."""

    label: float | int | None
    timestamp: int


class StorageObservationLog:
    """Appends to a dataset of records (`modyn data register NAME --records`), whose samples then reach the stream of a run in production mode.

    The label is that of the observation, the timestamp the second in which it came, the key its idempotency key. The payload is `payload_of` its
    features, or `row_of` where the run has a section `preprocessing`.
    """

    def __init__(
        self,
        storage: StorageClient,
        dataset: str,
        *,
        columns: bool = False,
        classes: LabelClasses | None = None,
        sealed_s: float = 1.0,
    ) -> None:
        """Args: columns: inputs are columns of the section `preprocessing`. classes: that labels are; None: any number that the dataset takes.
        sealed_s: for which a record that was just appended is waited for, to become a sample that others can be compared with.

        Raises: NotFoundError: there is no such dataset. InvalidArgumentError: its samples are not records. UnavailableError."""
        info = storage.dataset(dataset)
        if not info.config.holds_records:
            raise InvalidArgumentError(
                f"dataset '{dataset}' is made of files, to which no observation can be appended; `modyn data register NAME --records` makes one "
                "that takes them"
            )
        self._storage, self._dataset, self._identity = storage, dataset, info.identity
        self._float_labels, self._classes = info.float_labels, classes
        self._payload = row_of if columns else payload_of
        self._sealed_s, self._clock_reported = sealed_s, False
        self._unsealed = frozenset[int]()
        """Keys of samples that the last call could not compare with, since they are none yet."""

    @property
    def identity(self) -> str:
        """Of the dataset: another one of the same name has another one."""
        return self._identity

    @property
    def takes_fractions(self) -> bool:
        """Whether labels of the dataset may be fractions."""
        return self._float_labels

    def check_label(self, label: float | int) -> None:
        """As `ObservationLog.check_label`."""
        if why := why_no_label(label, self._float_labels):
            other = (
                ""
                if self._float_labels
                else "; `modyn data register NAME --records -o label_type=float` makes one that takes fractions"
            )
            raise InvalidArgumentError(f"the {why}{other}")
        if self._classes is not None and (why := self._classes.why_not(label)):
            raise InvalidArgumentError(f"{why}; send one of these")

    def append(self, records: Sequence[ObservationRecord]) -> Appended:
        """As `ObservationLog.append`. What storage takes for a time in the future, since its clock is another one, gets the time of storage."""
        sent = _Sent()
        for first in range(0, len(records), MOST_RECORDS):
            # Not more at once: the client would send several calls, and what the first ones appended would be known when a later one is refused.
            self._send([self._made(record) for record in records[first : first + MOST_RECORDS]], sent)
        # One that differs may differ in its time alone.
        differing = [(record, answer.sample_key) for record, answer in sent.answers if answer.differs]
        self._unsealed = self._wait_until_sealed(frozenset(key for _, key in differing))
        stored = self._stored([key for _, key in differing if key not in self._unsealed])
        compared = [(record, stored[key]) for record, key in differing if key in stored]
        # A record that somebody appended without a label gets this one.
        unlabelled = {record.key: record.label for record, found in compared if found.label is None and record.label is not None}
        if unlabelled:
            self._storage.set_labels(self._dataset, unlabelled, self._identity)
        labels = {record.key: found.label for record, found in compared if found.label is not None}
        reused = self._with_other_payloads(compared)
        undecided = {record.key for record, key in differing if key in self._unsealed}
        duplicates = [record for record, answer in sent.answers if answer.is_duplicate and record.key not in reused | undecided]
        known = {record.key: label for record in duplicates if (label := labels.get(record.key, record.label)) is not None}
        return Appended(known, sent.refused, reused, frozenset(undecided))

    def _made(self, record: ObservationRecord) -> NewRecord:
        label = float(record.label) if self._float_labels else record.label
        return NewRecord(record.key, self._payload(record.features.inputs), label, int(record.observed_at))

    def _send(self, records: Sequence[NewRecord], sent: _Sent) -> None:
        """Append records. A call with one that storage refuses fails as a whole: its halves are called then, so that one of n costs about 2 log2(n)
        calls."""
        asked = [sent.timed(record) for record in records]
        try:
            sent.answers += zip(asked, self._storage.append_records(self._dataset, asked, self._identity), strict=True)
        except InvalidArgumentError as error:
            if len(asked) > 1:
                middle = len(asked) // 2
                self._send(records[:middle], sent)
                self._send(records[middle:], sent)
            elif (at := asked[0].timestamp) is None:
                sent.refused[asked[0].key] = error.message
            else:
                before, sent.future_from = sent.future_from, at
                self._send(records, sent)
                if asked[0].key in sent.refused:  # Not for its time.
                    sent.future_from = before
                else:
                    self._report_clock(at)

    def _report_clock(self, at: int) -> None:
        """Log once that the clock of this server is ahead."""
        if not self._clock_reported:
            self._clock_reported = True
            get_logger("serving.observations").warning(
                "observed_in_the_future",
                dataset=self._dataset,
                time=at,
                advice="storage takes this time for one in the future, so such samples get the time at which storage has them: set the clocks of the "
                "two machines, which may differ by storage.future_tolerance_s",
            )

    def _with_other_payloads(self, compared: Sequence[tuple[NewRecord, _StoredSample]]) -> frozenset[str]:
        """The keys of records whose samples have another payload: storage says so of a record with label and time of the sample, or without a time if
        the sample's is that of its arrival."""
        asked = _Sent()
        with_time = [replace(record, label=found.label, timestamp=found.timestamp) for record, found in compared]
        if with_time:
            self._send([*with_time, *(replace(record, timestamp=None) for record in with_time)], asked)
        same = {record.key for record, answer in asked.answers if not answer.differs}
        return frozenset(record.key for record, answer in asked.answers) - same

    def _wait_until_sealed(self, sample_keys: frozenset[int]) -> frozenset[int]:
        """Wait until these are samples. Returns: those that are none yet; for one that was returned before, there is no wait."""
        give_up = time.monotonic() + self._sealed_s
        while True:
            next_key = self._storage.dataset(self._dataset).next_key if sample_keys else 0
            unsealed = frozenset(key for key in sample_keys if key >= next_key)
            if unsealed <= self._unsealed or time.monotonic() > give_up:
                return unsealed
            time.sleep(_PAUSE_S)  # Until storage has published what it has appended.

    def _stored(self, sample_keys: Sequence[int]) -> dict[int, _StoredSample]:
        """Samples by key; without those that were deleted."""
        if not sample_keys:
            return {}
        try:
            found = self._storage.samples_by_key(self._dataset, np.array(sample_keys, np.int64), self._identity)
        except NotFoundError:  # One of them was deleted: its half is asked for until it is alone.
            middle = len(sample_keys) // 2
            return self._stored(sample_keys[:middle]) | self._stored(sample_keys[middle:]) if middle else {}
        labels = [label if has else None for label, has in zip(found.labels.tolist(), has_label(found.labels), strict=True)]
        samples = map(_StoredSample, labels, found.timestamps.tolist())
        return dict(zip(sample_keys, samples, strict=True))


def check_readable(pipeline: Mapping[str, Any], dataset: str | None) -> None:
    """Check that a run can read what is added to a dataset that it trains on. Args: dataset: of observations; None: there is none.

    Raises: ConfigError: observations are JSON, and the run reads its dataset as CSV.
    """
    if why := unreadable_observations(pipeline, dataset):
        raise ConfigError(f"serving.observations: {why}")


def payload_of(inputs: Tensors) -> bytes:
    """The payload of the one row of a request: of a single input of numbers its bytes, little-endian, row by row, as `data.record_layout` of its type
    and shape reads them; else a JSON object with a list, number or text for each input.

    >>> payload_of({"x": np.array([[1, 2]], np.int16)})
    b'\\x01\\x00\\x02\\x00'
    >>> payload_of({"x": np.array([[1.5]]), "site": np.array([b"a.org"], object)})
    b'{"x":[1.5],"site":"a.org"}'
    """
    if len(inputs) == 1 and (values := next(iter(inputs.values()))).dtype != object:
        return np.ascontiguousarray(values[0], values.dtype.newbyteorder("<")).tobytes()
    return json.dumps({name: _plain(values[0]) for name, values in inputs.items()}, separators=(",", ":")).encode()


def row_of(inputs: Tensors) -> bytes:
    """The payload of the one row of a request whose inputs are columns: a JSON object of them, null where a value is missing, as `format: json` of
    the section `preprocessing` reads it.

    >>> row_of({"age": np.array([np.nan]), "site": np.array([b"a.org"], object)})
    b'{"age":null,"site":"a.org"}'
    """
    row = {name: _plain(values.reshape(-1)[0]) for name, values in inputs.items()}
    missing = {name: None for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)}
    return json.dumps({**row, **missing}, separators=(",", ":")).encode()


def _plain(value: object) -> object:
    """A value as JSON has it; bytes that are no UTF-8 as base64."""
    if isinstance(value, np.ndarray):
        return [_plain(each) for each in value.tolist()]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return value.item() if isinstance(value, np.generic) else value
