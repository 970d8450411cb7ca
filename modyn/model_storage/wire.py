"""The stream of messages in which weights travel. Records are converted by field name (`modyn.rpc.wire`)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import BinaryIO, Final, TypeVar

from modyn.proto import model_storage_pb2

CHUNK_BYTES: Final = 1 << 20
M = TypeVar("M", model_storage_pb2.PutRequest, model_storage_pb2.GetReply)


def weights_to_proto(message: type[M], file: BinaryIO) -> Iterator[M]:
    """Yield the content of a file as messages of at most CHUNK_BYTES, then the trailer with its size and SHA-256."""
    digest, num_bytes = hashlib.sha256(), 0
    file.seek(0)
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
        num_bytes += len(chunk)
        yield message(chunk=chunk)
    yield message(trailer=model_storage_pb2.Trailer(num_bytes=num_bytes, sha256=digest.hexdigest()))
