"""The gRPC servicer of model storage, which decodes requests, calls the store and encodes responses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import grpc
from prometheus_client import Counter

from modyn.db.engine import open_database
from modyn.errors import InvalidArgumentError, NotFoundError
from modyn.model_storage.client import OUT_OF_ORDER, ModelHeader, weights_from_proto, weights_to_proto
from modyn.model_storage.formats import MODEL_FORMATS
from modyn.model_storage.promotions import PromotionRequest
from modyn.model_storage.section import validate_section
from modyn.model_storage.store import QUARANTINE, ModelStore
from modyn.proto import common_pb2, model_storage_pb2, model_storage_pb2_grpc
from modyn.records import RunId
from modyn.rpc.logs import bind, get_logger
from modyn.rpc.server import Registration, ServiceContext
from modyn.rpc.wire import from_message, from_struct, plugins_to_proto, problems_to_proto, to_message

STORED = Counter("modyn_models_stored", "Model versions that were stored", ["strategy"])
STORED_BYTES = Counter("modyn_models_stored_bytes", "Bytes on disk of the versions that were stored", ["strategy"])
SENT_BYTES = Counter("modyn_models_sent_bytes", "Bytes of weights that were sent to clients")


def build(context: ServiceContext) -> Sequence[Registration]:
    """Open the catalogue, set aside files that a crash left, and return the servicer."""
    database = open_database(context.config, "model_storage", "modyn.model_storage.migrations")
    context.on_shutdown(database.close)
    context.remove_outlived(f"{QUARANTINE}/*")
    servicer = ModelStorageServicer(ModelStore(database, context.directory, context.logger))
    return [Registration(model_storage_pb2_grpc.add_ModelStorageServicer_to_server, servicer, "modyn.ModelStorage")]


class ModelStorageServicer(model_storage_pb2_grpc.ModelStorageServicer):
    """The calls of model_storage.proto.

    Each method decodes the request of the call of the same name in protos/, calls the store and encodes the response.
    """

    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self._logger = get_logger("model_storage")

    def ValidateSection(self, request: common_pb2.SectionRequest, context: grpc.ServicerContext) -> common_pb2.SectionReply:
        """Return the problems of the section `model_storage` of a whole pipeline; empty if the section is valid."""
        return problems_to_proto(validate_section(from_struct(request.pipeline)))

    def ListPlugins(self, request: common_pb2.Empty, context: grpc.ServicerContext) -> common_pb2.PluginList:
        """Return the registered file formats of models."""
        return plugins_to_proto(MODEL_FORMATS)

    def Put(
        self, request_iterator: Iterator[model_storage_pb2.PutRequest], context: grpc.ServicerContext
    ) -> model_storage_pb2.StoredModelInfo:
        """Store a version, which is visible when complete. If (run, trigger) already has a version, return that version and drop the sent version.

        INVALID_ARGUMENT: the stream has no header, is cut, or does not match its checksum.
        """
        first = next(request_iterator, None)
        if first is None or first.WhichOneof("part") != "header":
            raise InvalidArgumentError("a put begins with a header")
        header = from_message(first.header, ModelHeader)
        with bind(run_id=header.run_id, trigger_id=header.trigger_id):
            with self._store.receive() as path, self._store.receive() as state:
                for part in (path, state) if header.has_optimizers else (path,):
                    with part.open("xb") as file:
                        problem = weights_from_proto(request_iterator, file)
                    if problem:
                        raise InvalidArgumentError(f"the model {problem}; put it again")
                if next(request_iterator, None) is not None:
                    raise InvalidArgumentError(f"the model {OUT_OF_ORDER}; put it again")
                info = self._store.publish(header, path, state if header.has_optimizers else None)
            STORED.labels(info.version.strategy).inc()
            STORED_BYTES.labels(info.version.strategy).inc(info.version.num_bytes)
            self._logger.info("model_stored", model_id=info.version.model_id, num_bytes=info.version.num_bytes)
            return to_message(info, model_storage_pb2.StoredModelInfo)

    def Get(self, request: model_storage_pb2.ModelId, context: grpc.ServicerContext) -> Iterator[model_storage_pb2.GetReply]:
        """Stream a version as safetensors, converted from its format on disk. Status NOT_FOUND: there is no such version. CORRUPT_STATE: the file is
        damaged.
        """
        with self._store.fetch(request.model_id) as (info, path), path.open("rb") as file:
            yield model_storage_pb2.GetReply(info=to_message(info, model_storage_pb2.StoredModelInfo))
            for reply in weights_to_proto(model_storage_pb2.GetReply, file):
                SENT_BYTES.inc(len(reply.chunk))
                yield reply

    def GetOptimizers(
        self, request: model_storage_pb2.ModelId, context: grpc.ServicerContext
    ) -> Iterator[model_storage_pb2.GetReply]:
        """Stream the state of a version's optimizers; status NOT_FOUND if no state is kept, CORRUPT_STATE if the file is damaged."""
        with self._store.open_optimizers(request.model_id) as file:
            yield from weights_to_proto(model_storage_pb2.GetReply, file)

    def Describe(self, request: model_storage_pb2.ModelId, context: grpc.ServicerContext) -> model_storage_pb2.StoredModelInfo:
        """Return a version without its weights; status NOT_FOUND if there is no such version."""
        return to_message(self._store.describe(request.model_id), model_storage_pb2.StoredModelInfo)

    def Find(self, request: model_storage_pb2.ModelOfTrigger, context: grpc.ServicerContext) -> model_storage_pb2.StoredModelInfo:
        """Return the version of a trigger of a run; status NOT_FOUND if the trigger has no version."""
        found = self._store.find(RunId(request.run_id), request.trigger_id)
        if found is None:
            raise NotFoundError(f"run '{request.run_id}' has no model of trigger {request.trigger_id}")
        return to_message(found, model_storage_pb2.StoredModelInfo)

    def List(
        self, request: model_storage_pb2.ListModelsRequest, context: grpc.ServicerContext
    ) -> Iterator[model_storage_pb2.StoredModelInfo]:
        """Stream the versions of a run, or all versions, in the order in which they were stored."""
        for info in self._store.list(RunId(request.run_id)):
            yield to_message(info, model_storage_pb2.StoredModelInfo)

    def Delete(self, request: model_storage_pb2.DeleteModelRequest, context: grpc.ServicerContext) -> common_pb2.Empty:
        """Delete a version and its file; status CONFLICT while the version is promoted, NOT_FOUND if there is no such version."""
        self._store.delete(request.model_id, even_promoted=request.even_promoted)
        self._logger.info("model_deleted", model_id=request.model_id)
        return common_pb2.Empty()

    def Promote(
        self, request: model_storage_pb2.PromoteRequest, context: grpc.ServicerContext
    ) -> model_storage_pb2.StoredModelInfo:
        """Mark a version as the promoted version of its run. A repeated call changes nothing."""
        asked = from_message(request, PromotionRequest)
        info = self._store.promote(asked)
        self._logger.info("model_promoted", model_id=request.model_id, made_by=request.made_by)
        return to_message(info, model_storage_pb2.StoredModelInfo)

    def RefusePromotion(self, request: model_storage_pb2.PromoteRequest, context: grpc.ServicerContext) -> common_pb2.Empty:
        """Record that an evaluation refused a promotion; status NOT_FOUND if there is no such version."""
        self._store.promotions.refuse(from_message(request, PromotionRequest))
        self._logger.info("promotion_refused", model_id=request.model_id, made_by=request.made_by)
        return common_pb2.Empty()

    def Rollback(
        self, request: model_storage_pb2.RollbackRequest, context: grpc.ServicerContext
    ) -> model_storage_pb2.StoredModelInfo:
        """Promote the previously promoted version again; status CONFLICT if there is no such version."""
        model_id = self._store.promotions.rollback(RunId(request.run_id), request.reason, request.made_by)
        self._logger.info("model_rolled_back", run_id=request.run_id, model_id=model_id, made_by=request.made_by)
        return to_message(self._store.describe(model_id), model_storage_pb2.StoredModelInfo)

    def Current(
        self, request: model_storage_pb2.CurrentRequest, context: grpc.ServicerContext
    ) -> model_storage_pb2.CurrentVersions:
        """Return the newest and the promoted version of a run."""
        return to_message(self._store.promotions.current(RunId(request.run_id)), model_storage_pb2.CurrentVersions)

    def Promotions(
        self, request: model_storage_pb2.PromotionsRequest, context: grpc.ServicerContext
    ) -> model_storage_pb2.PromotionsReply:
        """Return the audit trail of a run."""
        trail = self._store.promotions.trail(RunId(request.run_id))
        return model_storage_pb2.PromotionsReply(promotions=[to_message(entry, model_storage_pb2.Promotion) for entry in trail])
