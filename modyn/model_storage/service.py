"""The gRPC face of model storage: decode, call, encode."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import grpc
from prometheus_client import Counter

from modyn.db.engine import open_database
from modyn.errors import InvalidArgumentError, NotFoundError
from modyn.model_storage.formats import MODEL_FORMATS
from modyn.model_storage.records import ModelHeader, StoredModelInfo
from modyn.model_storage.section import validate_section
from modyn.model_storage.store import ModelStore
from modyn.proto import common_pb2, model_storage_pb2, model_storage_pb2_grpc
from modyn.records import RunId
from modyn.rpc.logs import bind, get_logger
from modyn.rpc.server import Registration, ServiceContext
from modyn.rpc.wire import from_struct, plugins_to_proto, problems_to_proto, to_struct

STORED = Counter("modyn_models_stored", "Model versions that were stored", ["strategy"])
STORED_BYTES = Counter("modyn_models_stored_bytes", "Bytes on disk of the versions that were stored", ["strategy"])
SENT_BYTES = Counter("modyn_models_sent_bytes", "Bytes of weights that were sent to clients")

_CHUNK_BYTES = 1 << 20


def build(context: ServiceContext) -> Sequence[Registration]:
    """What `run_service` starts: catalogue opened, leftovers removed."""
    database = open_database(context.config, "model_storage", "modyn.model_storage.migrations")
    context.on_shutdown(database.close)
    servicer = ModelStorageServicer(ModelStore(database, context.directory, context.logger))
    return [Registration(model_storage_pb2_grpc.add_ModelStorageServicer_to_server, servicer, "modyn.ModelStorage")]


class ModelStorageServicer(model_storage_pb2_grpc.ModelStorageServicer):
    """Calls as documented in model_storage.proto."""

    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self._logger = get_logger("model_storage")

    def ValidateSection(self, request: common_pb2.SectionRequest, context: grpc.ServicerContext) -> common_pb2.SectionReply:
        return problems_to_proto(validate_section(from_struct(request.pipeline)))

    def ListPlugins(self, request: common_pb2.Empty, context: grpc.ServicerContext) -> common_pb2.PluginList:
        return plugins_to_proto(MODEL_FORMATS)

    def Put(
        self, request_iterator: Iterator[model_storage_pb2.PutRequest], context: grpc.ServicerContext
    ) -> model_storage_pb2.ModelInfo:
        header = _header(request_iterator)
        with bind(run_id=header.run_id, trigger_id=header.trigger_id):
            existing = self._store.find(header.run_id, header.trigger_id)
            if existing is not None:
                return _to_proto(existing)
            with self._store.receive() as incoming:
                for request in request_iterator:
                    match request.WhichOneof("part"):
                        case "chunk":
                            incoming.write(request.chunk)
                        case "trailer":
                            incoming.finish(request.trailer.num_bytes, request.trailer.sha256)
                            break
                        case _:
                            raise InvalidArgumentError("a put is one header, then chunks, then one trailer")
                else:
                    raise InvalidArgumentError("the put ended without a trailer: it is incomplete; put the model again")
                info = self._store.publish(header, incoming.path)
            STORED.labels(info.version.strategy).inc()
            STORED_BYTES.labels(info.version.strategy).inc(info.version.num_bytes)
            self._logger.info("model_stored", model_id=info.version.model_id, num_bytes=info.version.num_bytes)
            return _to_proto(info)

    def Get(self, request: model_storage_pb2.ModelId, context: grpc.ServicerContext) -> Iterator[model_storage_pb2.GetReply]:
        with self._store.fetch(request.model_id) as (info, path):
            yield model_storage_pb2.GetReply(info=_to_proto(info))
            digest, num_bytes = hashlib.sha256(), 0
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    num_bytes += len(chunk)
                    SENT_BYTES.inc(len(chunk))
                    yield model_storage_pb2.GetReply(chunk=chunk)
            yield model_storage_pb2.GetReply(trailer=model_storage_pb2.Trailer(num_bytes=num_bytes, sha256=digest.hexdigest()))

    def Describe(self, request: model_storage_pb2.ModelId, context: grpc.ServicerContext) -> model_storage_pb2.ModelInfo:
        return _to_proto(self._store.describe(request.model_id))

    def Find(self, request: model_storage_pb2.ModelOfTrigger, context: grpc.ServicerContext) -> model_storage_pb2.ModelInfo:
        found = self._store.find(RunId(request.run_id), request.trigger_id)
        if found is None:
            raise NotFoundError(f"run '{request.run_id}' has no model of trigger {request.trigger_id}")
        return _to_proto(found)

    def List(self, request: model_storage_pb2.ListModelsRequest, context: grpc.ServicerContext) -> model_storage_pb2.ModelList:
        return model_storage_pb2.ModelList(models=[_to_proto(info) for info in self._store.list(RunId(request.run_id))])

    def Delete(self, request: model_storage_pb2.ModelId, context: grpc.ServicerContext) -> common_pb2.Empty:
        self._store.delete(request.model_id)
        self._logger.info("model_deleted", model_id=request.model_id)
        return common_pb2.Empty()

    def Promote(self, request: model_storage_pb2.ModelId, context: grpc.ServicerContext) -> model_storage_pb2.ModelInfo:
        info = self._store.promote(request.model_id)
        self._logger.info("model_promoted", model_id=request.model_id)
        return _to_proto(info)


def _header(requests: Iterator[model_storage_pb2.PutRequest]) -> ModelHeader:
    first = next(requests, None)
    if first is None or first.WhichOneof("part") != "header":
        raise InvalidArgumentError("a put begins with a header")
    header = first.header
    return ModelHeader(
        run_id=RunId(header.run_id),
        trigger_id=header.trigger_id,
        model_class=header.model_class,
        model_config=from_struct(header.model_config),
        model_storage=from_struct(header.model_storage),
        training_result=from_struct(header.training_result),
        parent_id=header.parent_id or None,
    )


def _to_proto(info: StoredModelInfo) -> model_storage_pb2.ModelInfo:
    version = info.version
    return model_storage_pb2.ModelInfo(
        model_id=version.model_id,
        run_id=version.run_id,
        trigger_id=version.trigger_id,
        parent_id=version.parent_id or 0,
        model_class=info.model_class,
        model_config=to_struct(info.model_config),
        weights_sha256=version.weights_sha256,
        num_bytes=version.num_bytes,
        created_at=version.created_at,
        strategy=version.strategy,
        promoted=version.promoted,
        training_result=to_struct(info.training_result),
    )
