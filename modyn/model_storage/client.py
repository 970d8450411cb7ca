"""Talk to model storage: put, get, find, list, promote and delete model versions.

Weights travel as a safetensors file, in chunks, with a checksum at the end; nothing that is received is ever executed.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from modyn.errors import CorruptStateError, NotFoundError
from modyn.model_storage.records import ModelHeader, StoredModel, StoredModelInfo
from modyn.proto import model_storage_pb2, model_storage_pb2_grpc
from modyn.records import ModelVersion, RunId
from modyn.rpc.client import SectionClient
from modyn.rpc.wire import from_struct, to_struct

__all__ = ["ModelHeader", "ModelStorageClient", "StoredModel", "StoredModelInfo"]

CHUNK_BYTES: Final = 1 << 20


class ModelStorageClient(SectionClient):
    """Calls of model storage, which acts on the section `model_storage`."""

    _Stub = model_storage_pb2_grpc.ModelStorageStub

    def put(self, header: ModelHeader, safetensors_path: Path) -> ModelVersion:
        """Store the weights in `safetensors_path`. Visible at once or not at all; idempotent by (run, trigger) if there is a run:
        a second put returns the version that exists."""
        with safetensors_path.open("rb") as file:

            def put() -> ModelVersion:
                return info_from_proto(self._stub.Put(_put_requests(header, file))).version

            # Without a run a repeated put would store the model twice.
            return self._retrier.call(put) if header.run_id else put()

    def get(self, model_id: int, into: Path) -> StoredModel:
        """Fetch the weights of a version into the file `into`, which appears complete and checked or not at all.

        Raises NotFoundError for an unknown version, CorruptStateError if what arrived is not what was stored.
        """
        return self._retrier.call(self._get, model_id, into)

    def _get(self, model_id: int, into: Path) -> StoredModel:
        info: StoredModelInfo | None = None
        trailer: model_storage_pb2.Trailer | None = None
        digest, num_bytes = hashlib.sha256(), 0
        partial = into.with_name(f"{into.name}.{uuid.uuid4().hex}.partial")
        try:
            with partial.open("wb") as file:
                for reply in self._stub.Get(model_storage_pb2.ModelId(model_id=model_id)):
                    part = reply.WhichOneof("part")
                    if part == "info":
                        info = info_from_proto(reply.info)
                    elif part == "chunk":
                        file.write(reply.chunk)
                        digest.update(reply.chunk)
                        num_bytes += len(reply.chunk)
                    else:
                        trailer = reply.trailer
            if info is None or trailer is None or (trailer.num_bytes, trailer.sha256) != (num_bytes, digest.hexdigest()):
                raise CorruptStateError(f"model {model_id} arrived incomplete or changed ({num_bytes} bytes); fetch it again")
            os.replace(partial, into)
        finally:
            partial.unlink(missing_ok=True)
        return StoredModel(info.version, info.model_class, info.model_config, info.training_result, into)

    def describe(self, model_id: int) -> StoredModelInfo:
        """Raises NotFoundError for an unknown version."""
        return info_from_proto(self._stub.Describe(model_storage_pb2.ModelId(model_id=model_id)))

    def find(self, run_id: RunId, trigger_id: int) -> StoredModelInfo | None:
        """The version that this trigger of this run produced, if it is stored already."""
        try:
            return info_from_proto(self._stub.Find(model_storage_pb2.ModelOfTrigger(run_id=run_id, trigger_id=trigger_id)))
        except NotFoundError:
            return None

    def list(self, run_id: RunId | None = None) -> list[StoredModelInfo]:
        """The versions of one run (or of all, and imported ones), in the order in which they were put."""
        reply = self._stub.List(model_storage_pb2.ListModelsRequest(run_id=run_id or ""))
        return [info_from_proto(model) for model in reply.models]

    def delete(self, model_id: int) -> None:
        """Forget a version and its file. Raises ConflictError while it is promoted or others are stored as differences to it."""
        self._stub.Delete(model_storage_pb2.ModelId(model_id=model_id))

    def promote(self, model_id: int) -> StoredModelInfo:
        """Mark this version as the one to use; the version of the same run that was promoted before no longer is."""
        return info_from_proto(self._stub.Promote(model_storage_pb2.ModelId(model_id=model_id)))


def info_from_proto(message: model_storage_pb2.ModelInfo) -> StoredModelInfo:
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


def _put_requests(header: ModelHeader, file: BinaryIO) -> Iterator[model_storage_pb2.PutRequest]:
    yield model_storage_pb2.PutRequest(
        header=model_storage_pb2.ModelHeader(
            run_id=header.run_id,
            trigger_id=header.trigger_id,
            parent_id=header.parent_id or 0,
            model_class=header.model_class,
            model_config=to_struct(header.model_config),
            model_storage=to_struct(header.model_storage),
            training_result=to_struct(header.training_result),
        )
    )
    digest, num_bytes = hashlib.sha256(), 0
    file.seek(0)
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
        num_bytes += len(chunk)
        yield model_storage_pb2.PutRequest(chunk=chunk)
    yield model_storage_pb2.PutRequest(trailer=model_storage_pb2.Trailer(num_bytes=num_bytes, sha256=digest.hexdigest()))
