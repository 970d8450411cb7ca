"""Observation log that is a dataset of storage. Each complete observation becomes one appended record."""

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
from modyn.serving.messages.signature import IMAGE, Tensors
from modyn.serving.observations.join import Appended, ObservationRecord
from modyn.storage.client import MOST_RECORDS, AppendedRecord, NewRecord, StorageClient

_POLL_S: Final = 0.05
"""Seconds between two checks whether appended records have become samples."""


@dataclass(slots=True)
class _Sent:
    """Answers of storage to sent records."""

    answers: list[tuple[NewRecord, AppendedRecord]] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """Reason by key, for each record that storage will never accept."""
    future_from: float = math.inf
    """Earliest time that storage refuses because it is in the future."""

    def without_future_time(self, record: NewRecord) -> NewRecord:
        """Return the record. If storage refuses its time, the returned record has no time."""
        is_future = record.timestamp is not None and record.timestamp >= self.future_from
        return replace(record, timestamp=None) if is_future else record


@dataclass(frozen=True, slots=True)
class _StoredSample:
    """Label and time of a sample in storage."""

    label: float | int | None
    timestamp: int


class StorageObservationLog:
    """Appends observations to a dataset of records (`modyn data register NAME --records`). A run in production mode reads the samples of the dataset.

    A record has the observation's label, the arrival time in whole seconds as timestamp, and the observation's idempotency key. The payload is the
    result of `payload_of`, or of `row_of` if the run has a section `preprocessing`; if the run decodes images, the image.
    """

    def __init__(
        self,
        storage: StorageClient,
        dataset: str,
        *,
        columns: bool = False,
        images: bool = False,
        classes: LabelClasses | None = None,
        sealed_s: float = 1.0,
    ) -> None:
        """Args: columns: inputs are columns of the section `preprocessing`. images: the input is an encoded image. classes: allowed labels; None: any
        number that the dataset accepts.
        sealed_s: longest wait, in seconds, until an appended record becomes a sample that other records can be compared with.

        Raises: NotFoundError: there is no such dataset. InvalidArgumentError: the dataset is not a dataset of records. UnavailableError."""
        info = storage.dataset(dataset)
        if not info.config.holds_records:
            raise InvalidArgumentError(
                f"dataset '{dataset}' is made of files, to which no observation can be appended; `modyn data register NAME --records` makes one "
                "that takes them"
            )
        self._storage, self._dataset, self._identity = storage, dataset, info.identity
        self._float_labels, self._classes = info.float_labels, classes
        self._payload = row_of if columns else image_of if images else payload_of
        self._sealed_s, self._clock_reported = sealed_s, False
        self._unsealed = frozenset[int]()
        """Keys of records that were not samples yet at the last call, so that no record could be compared with them."""

    @property
    def identity(self) -> str:
        """Identity of the dataset's registration. Another dataset of the same name has another identity."""
        return self._identity

    @property
    def takes_fractions(self) -> bool:
        """Whether labels of the dataset may have a fractional part."""
        return self._float_labels

    def check_label(self, label: float | int) -> None:
        """See `ObservationLog.check_label`."""
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
        """See `ObservationLog.append`. If a record's time is in the future by storage's clock, storage's time replaces it."""
        sent = _Sent()
        for first in range(0, len(records), MOST_RECORDS):
            # `_send` repeats each call separately. If all calls were repeated together after a refusal, storage would report the records of
            # earlier calls as known.
            self._send([self._new_record(record) for record in records[first : first + MOST_RECORDS]], sent)
        # A record that differs may differ from the stored sample in the time alone.
        differing = [(record, answer.sample_key) for record, answer in sent.answers if answer.differs]
        self._unsealed = self._wait_until_sealed(frozenset(key for _, key in differing))
        stored = self._stored([key for _, key in differing if key not in self._unsealed])
        compared = [(record, stored[key]) for record, key in differing if key in stored]
        # A record that another client appended without a label gets the label of this observation.
        unlabelled = {record.key: record.label for record, found in compared if found.label is None and record.label is not None}
        if unlabelled:
            self._storage.set_labels(self._dataset, unlabelled, self._identity)
        labels = {record.key: found.label for record, found in compared if found.label is not None}
        reused = self._keys_with_other_payloads(compared)
        undecided = {record.key for record, key in differing if key in self._unsealed}
        duplicates = [record for record, answer in sent.answers if answer.is_duplicate and record.key not in reused | undecided]
        known = {record.key: label for record in duplicates if (label := labels.get(record.key, record.label)) is not None}
        return Appended(known, sent.refused, reused, frozenset(undecided))

    def _new_record(self, record: ObservationRecord) -> NewRecord:
        label = float(record.label) if self._float_labels else record.label
        return NewRecord(record.key, self._payload(record.features.inputs), label, int(record.observed_at))

    def _send(self, records: Sequence[NewRecord], sent: _Sent) -> None:
        """Append records. A call with a refused record fails as a whole. Then the two halves of the call are sent. One refused record among n records
        costs about 2 log2(n) calls.
        """
        asked = [sent.without_future_time(record) for record in records]
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
                if asked[0].key in sent.refused:  # refused for another reason than its time
                    sent.future_from = before
                else:
                    self._report_clock(at)

    def _report_clock(self, at: int) -> None:
        """Log once that the clock of this server is ahead of the clock of storage."""
        if not self._clock_reported:
            self._clock_reported = True
            get_logger("serving.observations").warning(
                "observed_in_the_future",
                dataset=self._dataset,
                time=at,
                advice="storage takes this time for one in the future, so such samples get the time at which storage has them: set the clocks of the "
                "two machines, which may differ by storage.future_tolerance_s",
            )

    def _keys_with_other_payloads(self, compared: Sequence[tuple[NewRecord, _StoredSample]]) -> frozenset[str]:
        """Return the keys of records whose samples have another payload. The record is sent again to storage with the label and time of the sample,
        and also without a time, because a sample stored without a time has its time of arrival.
        """
        asked = _Sent()
        with_time = [replace(record, label=found.label, timestamp=found.timestamp) for record, found in compared]
        if with_time:
            self._send([*with_time, *(replace(record, timestamp=None) for record in with_time)], asked)
        same = {record.key for record, answer in asked.answers if not answer.differs}
        return frozenset(record.key for record, answer in asked.answers) - same

    def _wait_until_sealed(self, sample_keys: frozenset[int]) -> frozenset[int]:
        """Wait until the records with these keys are samples. Returns the keys that are not samples yet. The method does not wait for keys that the
        last call returned.
        """
        give_up = time.monotonic() + self._sealed_s
        while True:
            next_key = self._storage.dataset(self._dataset).next_key if sample_keys else 0
            unsealed = frozenset(key for key in sample_keys if key >= next_key)
            if unsealed <= self._unsealed or time.monotonic() > give_up:
                return unsealed
            time.sleep(_POLL_S)  # Storage publishes appended records at intervals.

    def _stored(self, sample_keys: Sequence[int]) -> dict[int, _StoredSample]:
        """Return the samples that are not deleted, by key."""
        if not sample_keys:
            return {}
        try:
            found = self._storage.samples_by_key(self._dataset, np.array(sample_keys, np.int64), self._identity)
        except NotFoundError:  # A sample was deleted: halve the request until each deleted sample is alone.
            middle = len(sample_keys) // 2
            return self._stored(sample_keys[:middle]) | self._stored(sample_keys[middle:]) if middle else {}
        labels = [label if has else None for label, has in zip(found.labels.tolist(), has_label(found.labels), strict=True)]
        samples = map(_StoredSample, labels, found.timestamps.tolist())
        return dict(zip(sample_keys, samples, strict=True))


def check_readable(pipeline: Mapping[str, Any], dataset: str | None) -> None:
    """Check that a run can read the observations in a dataset that the run trains on. Args: dataset: dataset of the observations; None: the run has
    no such dataset.

    Raises: ConfigError: observations are JSON, and the run reads its dataset as CSV.
    """
    if why := unreadable_observations(pipeline, dataset):
        raise ConfigError(f"serving.observations: {why}")


def payload_of(inputs: Tensors) -> bytes:
    """Return the payload for a request of one row. A single input of numbers becomes its little-endian bytes, which `data.record_layout` reads.
    Other inputs become a JSON object with a list, number or text for each input.

    >>> payload_of({"x": np.array([[1, 2]], np.int16)})
    b'\\x01\\x00\\x02\\x00'
    >>> payload_of({"x": np.array([[1.5]]), "site": np.array([b"a.org"], object)})
    b'{"x":[1.5],"site":"a.org"}'
    """
    if len(inputs) == 1 and (values := next(iter(inputs.values()))).dtype != object:
        return np.ascontiguousarray(values[0], values.dtype.newbyteorder("<")).tobytes()
    return json.dumps({name: _plain(values[0]) for name, values in inputs.items()}, separators=(",", ":")).encode()


def image_of(inputs: Tensors) -> bytes:
    """Return the payload for a request of one image: its bytes, which `data.decode.image` reads."""
    return bytes(inputs[IMAGE].reshape(-1)[0])


def row_of(inputs: Tensors) -> bytes:
    """Return the payload for a request of one row of columns: a JSON object, with null for missing values. `format: json` of the section
    `preprocessing` reads it.

    >>> row_of({"age": np.array([np.nan]), "site": np.array([b"a.org"], object)})
    b'{"age":null,"site":"a.org"}'
    """
    row = {name: _plain(values.reshape(-1)[0]) for name, values in inputs.items()}
    missing = {name: None for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)}
    return json.dumps({**row, **missing}, separators=(",", ":")).encode()


def _plain(value: object) -> object:
    """Convert a value to a JSON value. Bytes that are not UTF-8 become base64."""
    if isinstance(value, np.ndarray):
        return [_plain(each) for each in value.tolist()]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return value.item() if isinstance(value, np.generic) else value
