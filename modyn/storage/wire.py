"""Converters between records and protos for: a dataset, appended records, locations of samples, and values of a column.

All other records have the same field names as their messages, so `modyn.rpc.wire` converts them. `modyn.rpc.arrays` converts batches of samples, and
`modyn.storage.flight.protocol` converts payloads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from modyn.config.dataset import DatasetConfig
from modyn.errors import InvalidArgumentError
from modyn.json_codec import sanitize
from modyn.proto import storage_pb2
from modyn.rpc.arrays import batch_from_proto, batch_to_proto, pack_column, unpack_column
from modyn.rpc.wire import from_message, from_struct, to_message, to_struct
from modyn.storage.model.dataset_records import AppendedRecord, ColumnValues, DatasetInfo, LateLabelBatch, NewRecord, SamplePlace


def spec_to_proto(config: DatasetConfig) -> storage_pb2.DatasetSpec:
    """Convert the registration of a dataset to a message."""
    section = to_struct(config.file_wrapper_config)
    return storage_pb2.DatasetSpec(**{**dict(config), "base_path": str(config.base_path), "file_wrapper_config": section})


def spec_from_proto(spec: storage_pb2.DatasetSpec) -> DatasetConfig:
    """Convert a message to the registration; empty fields get their defaults."""
    fields = {field.name: value for field, value in spec.ListFields()}
    config = from_struct(spec.file_wrapper_config)
    return DatasetConfig.model_validate(fields | {"file_wrapper_config": config, "watch": spec.watch})


def info_to_proto(info: DatasetInfo) -> storage_pb2.Dataset:
    """Convert a dataset and its registration to a message."""
    dataset = to_message(info, storage_pb2.Dataset)
    dataset.spec.CopyFrom(spec_to_proto(info.config))
    return dataset


def info_from_proto(dataset: storage_pb2.Dataset) -> DatasetInfo:
    """Convert a message to the dataset and its registration."""
    return from_message(dataset, DatasetInfo, config=spec_from_proto(dataset.spec))


def record_to_proto(record: NewRecord) -> storage_pb2.NewRecord:
    """Convert a new record to a message. Raises: InvalidArgumentError: a field is of another type, or out of range."""
    try:
        label = {"without_label": True} if record.label is None else _label(record.label)
        return storage_pb2.NewRecord(key=record.key, payload=record.payload, timestamp=record.timestamp, **label)
    except (TypeError, ValueError) as error:  # a label that is not a number, a key that is not text
        raise InvalidArgumentError(
            f"the record with the key {sanitize(str(record.key))[:150]!r} cannot be sent: {error}; its key is text, its payload bytes, its label a "
            "number, whole ones of 64 bits, and its time whole seconds"
        ) from error


def record_from_proto(message: storage_pb2.NewRecord) -> NewRecord:
    """Convert a message to a new record."""
    label = None if message.without_label else _label_of(message)
    return NewRecord(message.key, message.payload, label, message.timestamp if message.HasField("timestamp") else None)


def labels_to_proto(name: str, labels: Mapping[str, float], identity: str) -> storage_pb2.LabelsRequest:
    """Convert labels of records to a message. Raises: InvalidArgumentError: a label is not a number, or a key is not text."""
    try:
        found = [storage_pb2.RecordLabel(key=key, **_label(label)) for key, label in labels.items()]  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"these labels cannot be sent: {error}; keys are text, labels numbers") from error
    return storage_pb2.LabelsRequest(dataset=name, identity=identity, labels=found)


def labels_from_proto(request: storage_pb2.LabelsRequest) -> dict[str, float]:
    """Convert a message to labels by idempotency key. Raises: InvalidArgumentError: a key occurs twice."""
    labels = {label.key: _label_of(label) for label in request.labels}
    if len(labels) != len(request.labels):
        raise InvalidArgumentError("the call has two labels for one record; send each key once")
    return labels


def late_labels_to_proto(batch: LateLabelBatch) -> storage_pb2.LateLabelBatch:
    """Convert late labels to a message."""
    deleted = batch.deleted.tobytes() if batch.deleted.any() else b""
    return storage_pb2.LateLabelBatch(first=batch.first, samples=batch_to_proto(batch.samples), deleted=deleted)


def late_labels_from_proto(message: storage_pb2.LateLabelBatch) -> LateLabelBatch:
    """Convert a message to late labels."""
    samples = batch_from_proto(message.samples)
    deleted = np.frombuffer(message.deleted, np.bool_) if message.deleted else np.zeros(len(samples), np.bool_)
    return LateLabelBatch(message.first, samples, deleted)


def _label(label: float) -> dict[str, float]:
    return {"int_label" if isinstance(label, int | np.integer) else "float_label": label}


def _label_of(message: storage_pb2.NewRecord | storage_pb2.RecordLabel) -> float:
    return message.float_label if message.WhichOneof("label") == "float_label" else message.int_label


def appended_to_proto(records: Iterable[AppendedRecord]) -> storage_pb2.AppendReply:
    """Convert the answers for appended records to a message. The conversion copies field by field, which is fast."""
    make = storage_pb2.AppendedRecord
    found = [make(sample_key=record.sample_key, is_duplicate=record.is_duplicate, differs=record.differs) for record in records]
    return storage_pb2.AppendReply(records=found)


def appended_from_proto(reply: storage_pb2.AppendReply) -> list[AppendedRecord]:
    """Convert a message to the answers for appended records."""
    return [AppendedRecord(record.sample_key, record.is_duplicate, record.differs) for record in reply.records]


def place_to_proto(place: SamplePlace) -> storage_pb2.SamplePlace:
    """Convert the location of a sample to a message."""
    message = to_message(place, storage_pb2.SamplePlace)
    if isinstance(place.label, int):
        message.int_label = place.label
    return message


def place_from_proto(message: storage_pb2.SamplePlace) -> SamplePlace:
    """Convert a message to the location of a sample. A label that is a whole number becomes an int."""
    place = from_message(message, SamplePlace)
    return replace(place, label=message.int_label) if message.HasField("int_label") else place


def column_to_proto(found: ColumnValues) -> storage_pb2.ColumnValuesPart:
    """Convert values of a column to a message."""
    return storage_pb2.ColumnValuesPart(num_samples=len(found), values=found.values, numbers=pack_column(found.numbers))


def column_from_proto(part: storage_pb2.ColumnValuesPart) -> ColumnValues:
    """Convert a message to values of a column. Raises InvalidArgumentError if the message does not have `num_samples` numbers."""
    return ColumnValues(list(part.values), unpack_column(part.numbers, part.num_samples))
