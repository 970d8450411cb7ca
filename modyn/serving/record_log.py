"""Observations as samples of a dataset: each complete one becomes a record that storage appends, once."""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from modyn.config.serving import unreadable_observations
from modyn.errors import ConfigError, InvalidArgumentError, NotFoundError
from modyn.models.classes import LabelClasses
from modyn.records import LARGEST_LABEL
from modyn.serving.observation_join import Appended, ObservationRecord
from modyn.serving.signature import Tensors
from modyn.storage.client import AppendedRecord, NewRecord, StorageClient

_SAMPLES_S: Final = 1.0
"""For which a record that was just appended is waited for, to become a sample whose label can be read."""
_PAUSE_S: Final = 0.05


class StorageObservationLog:
    """Appends to a dataset of records (`modyn data register NAME --records`), whose samples then reach the stream of a run in production mode.

    The label is that of the observation, the timestamp the second in which it came, the key its idempotency key. The payload is `payload_of` its
    features, or `row_of` where the run has a section `preprocessing`.
    """

    def __init__(
        self, storage: StorageClient, dataset: str, *, columns: bool = False, classes: LabelClasses | None = None
    ) -> None:
        """Args: columns: inputs are columns of the section `preprocessing`. classes: that labels are; None: any number that the dataset takes.

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
        if self._float_labels and not abs(label) <= LARGEST_LABEL:
            raise InvalidArgumentError(
                f"the label is {label!r}; send a finite number of at most {LARGEST_LABEL:.4g}, as float32 holds"
            )
        if not self._float_labels and not (-(2**63) <= label < 2**63 and label == int(label)):
            raise InvalidArgumentError(
                f"the label is {label!r}, and dataset '{self._dataset}' takes whole numbers of 64 bits; send one, or serve with a dataset of "
                "`modyn data register NAME --records -o label_type=float`"
            )
        if self._classes is not None and (why := self._classes.why_not(label)):
            raise InvalidArgumentError(f"{why}; send one of these")

    def append(self, records: Sequence[ObservationRecord]) -> Appended:
        """As `ObservationLog.append`."""
        made = [self._made(record) for record in records]
        refused = dict[str, str]()
        try:
            answers = list(zip(made, self._storage.append_records(self._dataset, made, self._identity), strict=True))
        except InvalidArgumentError:  # One of them is refused, and so its whole call was: which one, each by itself shows.
            answers = [(record, answer) for record in made for answer in self._append_one(record, refused)]
        # One that differs may differ in its time alone.
        keys = {record.key: answer.sample_key for record, answer in answers if answer.differs}
        labels = self._labels(list(keys.values())) if keys else {}
        known = {record.key: record.label for record, answer in answers if answer.is_duplicate}
        return Appended({key: labels.get(keys[key], label) if key in keys else label for key, label in known.items()}, refused)

    def _made(self, record: ObservationRecord) -> NewRecord:
        label = float(record.label) if self._float_labels else record.label
        return NewRecord(record.key, self._payload(record.features.inputs), label, int(record.observed_at))

    def _append_one(self, record: NewRecord, refused: dict[str, str]) -> list[AppendedRecord]:
        """Append one record, or note in `refused` why it is none."""
        try:
            return self._storage.append_records(self._dataset, [record], self._identity)
        except InvalidArgumentError as error:
            refused[record.key] = error.message
            return []

    def _labels(self, sample_keys: Sequence[int]) -> Mapping[int, float | int]:
        """Labels by key of sample; without those of samples that were deleted."""
        try:
            return self._read(sample_keys)
        except NotFoundError:  # One of them was deleted, or is not a sample yet.
            give_up = time.monotonic() + _SAMPLES_S
            return {key: label for each in sample_keys for key, label in self._label_until(each, give_up).items()}

    def _label_until(self, sample_key: int, give_up: float) -> Mapping[int, float | int]:
        while True:
            try:
                return self._read([sample_key])
            except NotFoundError:
                if time.monotonic() > give_up:
                    return {}
            time.sleep(_PAUSE_S)  # Until storage has published what it has appended.

    def _read(self, sample_keys: Sequence[int]) -> Mapping[int, float | int]:
        found = self._storage.samples_by_key(self._dataset, np.array(sample_keys, np.int64), self._identity)
        return dict(zip(sample_keys, found.labels.tolist(), strict=True))


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
