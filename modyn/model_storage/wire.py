"""Converters record ↔ proto of model storage's calls, and the stream in which weights travel."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import BinaryIO, Final, TypeVar

from modyn.model_storage.records import ModelHeader, StoredModelInfo
from modyn.proto import model_storage_pb2
from modyn.records import ModelVersion, RunId
from modyn.rpc.wire import from_struct, to_struct

CHUNK_BYTES: Final = 1 << 20
M = TypeVar("M", model_storage_pb2.PutRequest, model_storage_pb2.GetReply)


def header_to_proto(header: ModelHeader) -> model_storage_pb2.ModelHeader:
    return model_storage_pb2.ModelHeader(
        run_id=header.run_id,
        trigger_id=header.trigger_id,
        parent_id=header.parent_id or 0,
        model_class=header.model_class,
        model_config=to_struct(header.model_config),
        model_storage=to_struct(header.model_storage),
        training_result=to_struct(header.training_result),
    )


def header_from_proto(message: model_storage_pb2.ModelHeader) -> ModelHeader:
    return ModelHeader(
        run_id=RunId(message.run_id),
        trigger_id=message.trigger_id,
        parent_id=message.parent_id or None,
        model_class=message.model_class,
        model_config=from_struct(message.model_config),
        model_storage=from_struct(message.model_storage),
        training_result=from_struct(message.training_result),
    )


def model_info_to_proto(info: StoredModelInfo) -> model_storage_pb2.ModelInfo:
    version = info.version
    return model_storage_pb2.ModelInfo(
        model_id=version.model_id,
        run_id=version.run_id,
        trigger_id=version.trigger_id,
        parent_id=version.parent_id or 0,
        weights_sha256=version.weights_sha256,
        num_bytes=version.num_bytes,
        created_at=version.created_at,
        strategy=version.strategy,
        promoted=version.promoted,
        model_class=info.model_class,
        model_config=to_struct(info.model_config),
        training_result=to_struct(info.training_result),
    )


def model_info_from_proto(message: model_storage_pb2.ModelInfo) -> StoredModelInfo:
    return StoredModelInfo(
        version=ModelVersion(
            model_id=message.model_id,
            run_id=RunId(message.run_id),
            trigger_id=message.trigger_id,
            parent_id=message.parent_id or None,
            weights_sha256=message.weights_sha256,
            num_bytes=message.num_bytes,
            created_at=message.created_at,
            strategy=message.strategy,
            promoted=message.promoted,
        ),
        model_class=message.model_class,
        model_config=from_struct(message.model_config),
        training_result=from_struct(message.training_result),
    )


def weights_to_proto(message: type[M], file: BinaryIO) -> Iterator[M]:
    """Yield the content of a file as messages of at most CHUNK_BYTES, then the trailer with its size and SHA-256."""
    digest, num_bytes = hashlib.sha256(), 0
    file.seek(0)
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
        num_bytes += len(chunk)
        yield message(chunk=chunk)
    yield message(trailer=model_storage_pb2.Trailer(num_bytes=num_bytes, sha256=digest.hexdigest()))
