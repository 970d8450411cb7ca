"""Converters record ↔ proto of a dataset and of values of a column; all other records have the field names of their message, see `modyn.rpc.wire`.

Batches of samples: `modyn.rpc.columns`. Payloads: `modyn.storage.flight.protocol`.
"""

from __future__ import annotations

from modyn.config.system import DatasetConfig
from modyn.proto import storage_pb2
from modyn.rpc.columns import pack_column, unpack_column
from modyn.rpc.wire import from_message, from_struct, to_message, to_struct
from modyn.storage.model.records import ColumnValues, DatasetInfo


def spec_to_proto(config: DatasetConfig) -> storage_pb2.DatasetSpec:
    """The registration of a dataset, as a message."""
    section = to_struct(config.file_wrapper_config)
    return storage_pb2.DatasetSpec(**{**dict(config), "base_path": str(config.base_path), "file_wrapper_config": section})


def spec_from_proto(spec: storage_pb2.DatasetSpec) -> DatasetConfig:
    """The registration that a message holds; fields that were left empty get their defaults."""
    fields = {field.name: value for field, value in spec.ListFields()}
    config = from_struct(spec.file_wrapper_config)
    return DatasetConfig.model_validate(fields | {"file_wrapper_config": config, "watch": spec.watch})


def info_to_proto(info: DatasetInfo) -> storage_pb2.Dataset:
    """A dataset and its registration, as a message."""
    dataset = to_message(info, storage_pb2.Dataset)
    dataset.spec.CopyFrom(spec_to_proto(info.config))
    return dataset


def info_from_proto(dataset: storage_pb2.Dataset) -> DatasetInfo:
    """The dataset and the registration that a message holds."""
    return from_message(dataset, DatasetInfo, config=spec_from_proto(dataset.spec))


def column_to_proto(found: ColumnValues) -> storage_pb2.ColumnValuesPart:
    """The values of some samples, as a message."""
    return storage_pb2.ColumnValuesPart(num_samples=len(found), values=found.values, numbers=pack_column(found.numbers))


def column_from_proto(part: storage_pb2.ColumnValuesPart) -> ColumnValues:
    """The values that a message holds. Raises InvalidArgumentError when its columns differ in length."""
    return ColumnValues(list(part.values), unpack_column(part.numbers, part.num_samples))
