"""Converters record ↔ proto of storage's calls.

Records whose fields have the names of their message need none: `modyn.rpc.wire.to_message` and `from_message`. Batches of samples:
`modyn.rpc.columns`. Payloads: `modyn.storage.flight.protocol`.
"""

from __future__ import annotations

from modyn.config.system import DatasetConfig
from modyn.proto import storage_pb2
from modyn.rpc.wire import from_struct, to_struct
from modyn.sanitize import sanitize
from modyn.storage.model.records import DatasetInfo, FileProblem


def spec_to_proto(config: DatasetConfig) -> storage_pb2.DatasetSpec:
    return storage_pb2.DatasetSpec(
        name=config.name,
        base_path=str(config.base_path),
        file_wrapper=config.file_wrapper,
        file_wrapper_config=to_struct(config.file_wrapper_config),
        filesystem_wrapper=config.filesystem_wrapper,
        timestamp_source=config.timestamp_source,
        watch=config.watch,
    )


def spec_from_proto(spec: storage_pb2.DatasetSpec) -> DatasetConfig:
    """Fields that were left empty get their defaults."""
    names = ("name", "base_path", "file_wrapper", "filesystem_wrapper", "timestamp_source")
    fields = {name: getattr(spec, name) for name in names} | {"file_wrapper_config": from_struct(spec.file_wrapper_config)}
    return DatasetConfig.model_validate({name: value for name, value in fields.items() if value} | {"watch": spec.watch})


_COUNTS = ("num_samples", "num_files", "num_problems", "next_key", "num_deleted", "float_labels")


def info_to_proto(info: DatasetInfo) -> storage_pb2.Dataset:
    return storage_pb2.Dataset(
        spec=spec_to_proto(info.config),
        min_timestamp=info.min_timestamp or 0,
        max_timestamp=info.max_timestamp or 0,
        **{name: getattr(info, name) for name in _COUNTS},
    )


def info_from_proto(dataset: storage_pb2.Dataset) -> DatasetInfo:
    indexed = dataset.next_key > 0
    return DatasetInfo(
        config=spec_from_proto(dataset.spec),
        min_timestamp=dataset.min_timestamp if indexed else None,
        max_timestamp=dataset.max_timestamp if indexed else None,
        **{name: getattr(dataset, name) for name in _COUNTS},
    )


def problem_to_proto(problem: FileProblem) -> storage_pb2.Problem:
    # A path may hold bytes that are no text.
    return storage_pb2.Problem(path=sanitize(problem.path), reason=sanitize(problem.reason), found_at=problem.found_at)
