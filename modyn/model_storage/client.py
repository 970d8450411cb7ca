"""Typed client of model storage. Weights travel as a safetensors file, in chunks with a checksum at the end; none is ever executed."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from modyn.errors import CorruptStateError, NotFoundError
from modyn.model_storage.records import ModelHeader, StoredModel, StoredModelInfo
from modyn.model_storage.wire import weights_to_proto
from modyn.proto import model_storage_pb2, model_storage_pb2_grpc
from modyn.records import ModelVersion, RunId
from modyn.rpc.client import SectionClient
from modyn.rpc.wire import from_message, to_message

__all__ = ["ModelHeader", "ModelStorageClient", "StoredModel", "StoredModelInfo"]


class ModelStorageClient(SectionClient):
    """Calls of model storage, which acts on the section `model_storage`."""

    _Stub = model_storage_pb2_grpc.ModelStorageStub

    def put(self, header: ModelHeader, safetensors_path: Path) -> ModelVersion:
        """Store the weights in `safetensors_path`. The version is visible at once or not at all.

        Idempotent by (run, trigger) if there is a run: a second put returns the version that exists.
        """
        with safetensors_path.open("rb") as file:

            def requests() -> Iterator[model_storage_pb2.PutRequest]:
                yield model_storage_pb2.PutRequest(header=to_message(header, model_storage_pb2.ModelHeader))
                yield from weights_to_proto(model_storage_pb2.PutRequest, file)

            def put() -> ModelVersion:
                return from_message(self._stub.Put(requests()), StoredModelInfo).version

            # Without a run a repeated put would store the model twice.
            return self._retrier.call(put) if header.run_id else put()

    def get(self, model_id: int, into: Path) -> StoredModel:
        """Fetch the weights of a version into the file `into`, which appears complete and verified or not at all.

        Raises: NotFoundError: the version is unknown. CorruptStateError: what arrived is not what was stored.
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
                        info = from_message(reply.info, StoredModelInfo)
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
        """Return what is known of a version without its weights. Raises NotFoundError."""
        return from_message(self._stub.Describe(model_storage_pb2.ModelId(model_id=model_id)), StoredModelInfo)

    def find(self, run_id: RunId, trigger_id: int) -> StoredModelInfo | None:
        """Return the version that a trigger of a run produced, if it is stored."""
        try:
            found = self._stub.Find(model_storage_pb2.ModelOfTrigger(run_id=run_id, trigger_id=trigger_id))
        except NotFoundError:
            return None
        return from_message(found, StoredModelInfo)

    def list(self, run_id: RunId | None = None) -> list[StoredModelInfo]:
        """Return the versions of one run (or all, with imported ones), in the order in which they were put."""
        reply = self._stub.List(model_storage_pb2.ListModelsRequest(run_id=run_id or ""))
        return [from_message(model, StoredModelInfo) for model in reply.models]

    def delete(self, model_id: int) -> None:
        """Delete a version and its file. Raises NotFoundError, or ConflictError while it is promoted."""
        self._stub.Delete(model_storage_pb2.ModelId(model_id=model_id))

    def promote(self, model_id: int) -> StoredModelInfo:
        """Mark a version as the one to use, in place of the one of the same run that was promoted before. Raises NotFoundError."""
        return from_message(self._stub.Promote(model_storage_pb2.ModelId(model_id=model_id)), StoredModelInfo)
