"""The gRPC servicer of the selector, which decodes requests, calls the selector and encodes responses. The server translates errors."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from modyn.config.system_sections.endpoint import Endpoint
from modyn.db.engine import open_database
from modyn.errors import CancelledError, InvalidArgumentError
from modyn.proto import common_pb2, selector_pb2, selector_pb2_grpc
from modyn.records import FeedbackHeader, RunId, RunRegistration
from modyn.rpc.arrays import (
    batch_from_proto,
    batch_to_proto,
    feedback_from_proto,
    feedback_row_bytes,
    feedback_to_proto,
    items_per_message,
    share_to_proto,
)
from modyn.rpc.logs import bind
from modyn.rpc.retry import CancellationToken
from modyn.rpc.server import Registration, ServiceContext
from modyn.rpc.wire import from_message, from_struct, plugins_to_proto, problems_to_proto, to_message
from modyn.selector.deletions import StorageDeletions
from modyn.selector.history import HISTORY, check_history
from modyn.selector.presampling import PRESAMPLING
from modyn.selector.run_rows import SCHEMA
from modyn.selector.selection import SELECTION, asked_scores
from modyn.selector.selector import KEYS_PER_CHUNK, Selector
from modyn.selector.storage_columns import StorageColumns, validate_columns
from modyn.selector.trigger_set import check_checksum
from modyn.storage.client import StorageClient

_KEY_BYTES = 12
"""Size in bytes of a key with its weight, without packing."""
_SAMPLE_BYTES = 24
"""Size in bytes of a key, a timestamp and a label without packing."""


def build(context: ServiceContext) -> list[Registration]:
    """Open the schema, repair the state after a crash, and return the servicer."""
    # At shutdown the callbacks run in reverse order. The selector stops its copies of samples before the database and storage are closed, because
    # copies use both services.
    database = open_database(context.config, SCHEMA, "modyn.selector.migrations")
    context.on_shutdown(database.close)
    storage = StorageClient(context.config.endpoint("storage"))
    context.on_shutdown(storage.close)
    selector = Selector(database, context.directory, StorageDeletions(storage), StorageColumns(storage))
    context.on_shutdown(selector.close)
    selector.recover()
    servicer = SelectorServicer(selector, storage, context.config.endpoint("selector"))
    return [Registration(selector_pb2_grpc.add_SelectorServicer_to_server, servicer, "modyn.Selector")]


class SelectorServicer(selector_pb2_grpc.SelectorServicer):
    """The calls of selector.proto.

    Each method decodes the request of the call with the same name in protos/, calls the selector and encodes the response.
    """

    def __init__(self, selector: Selector, storage: StorageClient, endpoint: Endpoint) -> None:
        self._selector, self._storage = selector, storage
        self._keys_per_message = min(KEYS_PER_CHUNK, items_per_message(endpoint, _KEY_BYTES))
        self._samples_per_message = items_per_message(endpoint, _SAMPLE_BYTES)
        self._endpoint = endpoint

    def ValidateSection(self, request: common_pb2.SectionRequest, context: grpc.ServicerContext) -> common_pb2.SectionReply:
        """Return the mistakes in `selection_strategy`, including its columns, and in `online.history`. Return also the names of the scores that the
        selection needs."""
        pipeline = from_struct(request.pipeline)
        return problems_to_proto(validate_columns(pipeline, self._storage) + check_history(pipeline), asked_scores(pipeline))

    def ListPlugins(self, request: common_pb2.Empty, context: grpc.ServicerContext) -> common_pb2.PluginList:
        """List the registered selection, presampling and history policies."""
        return plugins_to_proto(SELECTION, PRESAMPLING, HISTORY)

    def RegisterRun(self, request: selector_pb2.SelectorRun, context: grpc.ServicerContext) -> common_pb2.Empty:
        """Register a run. A repeated call with equal arguments has no effect; a call with other arguments is ALREADY_EXISTS."""
        with bind(run_id=request.run_id):
            self._selector.register_run(from_message(request, RunRegistration))
        return common_pb2.Empty()

    def GetRun(self, request: selector_pb2.SelectorRunId, context: grpc.ServicerContext) -> selector_pb2.SelectorRun:
        """Return the registration of a run; NOT_FOUND if the run is unknown."""
        return to_message(self._selector.run(RunId(request.run_id)), selector_pb2.SelectorRun)

    def Inform(self, request: selector_pb2.InformRequest, context: grpc.ServicerContext) -> selector_pb2.InformReply:
        """Append the samples that are not stored yet; return the number of stored samples. CONFLICT if samples before `position` are missing."""
        with bind(run_id=request.run_id):
            num_held = self._selector.inform(RunId(request.run_id), request.position, batch_from_proto(request.samples))
        return selector_pb2.InformReply(num_samples=num_held)

    def InformLabels(self, request: selector_pb2.InformRequest, context: grpc.ServicerContext) -> selector_pb2.InformReply:
        """Append samples whose labels have arrived and that are not stored yet; return the number of samples with labels. CONFLICT if the samples
        leave a gap."""
        with bind(run_id=request.run_id):
            num_held = self._selector.inform_labels(RunId(request.run_id), request.position, batch_from_proto(request.samples))
        return selector_pb2.InformReply(num_samples=num_held)

    def GetSamples(self, request: selector_pb2.SamplesRequest, context: grpc.ServicerContext) -> common_pb2.SampleColumns:
        """Return samples as `Inform` received them. If the requested samples do not fit into a message, return fewer samples."""
        limit = min(request.limit, self._samples_per_message)
        return batch_to_proto(self._selector.samples(RunId(request.run_id), request.position, limit, labelled=request.labelled))

    def Trigger(self, request: selector_pb2.TriggerRequest, context: grpc.ServicerContext) -> selector_pb2.TriggerSet:
        """Select a trigger set, or return the existing set. CONFLICT if the set has another number of samples, or the trigger is not the next
        trigger."""
        run_id, trigger_id = RunId(request.run_id), request.trigger_id
        token = CancellationToken()
        # The token cancels the selection when the call ends. `add_callback` returns False if the call has already ended.
        gone = CancelledError(
            f"the caller of trigger {trigger_id} of run '{run_id}' has gone, or its deadline has passed; call again"
        )
        if not context.add_callback(lambda: token.cancel(gone)):
            raise gone
        with bind(run_id=run_id, trigger_id=trigger_id):
            found = self._selector.trigger(
                run_id, trigger_id, request.num_samples, token, online=request.online, tests_only=request.tests_only
            )
            return to_message(found, selector_pb2.TriggerSet)

    def GetTriggerSet(self, request: selector_pb2.TriggerId, context: grpc.ServicerContext) -> selector_pb2.TriggerSet:
        """Describe a trigger set without its keys; NOT_FOUND if the set does not exist."""
        return to_message(self._selector.trigger_set(RunId(request.run_id), request.trigger_id), selector_pb2.TriggerSet)

    def GetKeys(self, request: selector_pb2.PartitionRequest, context: grpc.ServicerContext) -> Iterator[common_pb2.KeyColumns]:
        """Stream a partition in chunks that fit into a message. CONFLICT if the trigger set has another checksum."""
        chunks = self._selector.keys(
            RunId(request.run_id), request.trigger_id, request.partition, request.keys_checksum, self._keys_per_message
        )
        yield from map(share_to_proto, chunks)

    def PutFeedback(
        self, request_iterator: Iterator[selector_pb2.FeedbackPart], context: grpc.ServicerContext
    ) -> selector_pb2.FeedbackHeader:
        """Store the scores of a training, unless scores of this or a later attempt are stored. CONFLICT if they belong to another trigger set."""
        first = next(request_iterator, None)
        if first is None or first.WhichOneof("part") != "header":
            raise InvalidArgumentError("feedback begins with a header")
        header = from_message(first.header, FeedbackHeader)
        with bind(run_id=header.run_id, trigger_id=header.trigger_id):
            check_checksum(self._selector.trigger_set(header.run_id, header.trigger_id), header.keys_checksum)
            parts = ((part.rows.position, feedback_from_proto(part.rows)) for part in request_iterator)
            return to_message(self._selector.feedback(header.run_id).put(header, parts), selector_pb2.FeedbackHeader)

    def ListFeedback(self, request: selector_pb2.SelectorRunId, context: grpc.ServicerContext) -> selector_pb2.FeedbackList:
        """List the scores of the run's trainings, ordered by trigger."""
        headers = self._selector.feedback(RunId(request.run_id)).headers()
        return selector_pb2.FeedbackList(feedback=[to_message(header, selector_pb2.FeedbackHeader) for header in headers])

    def GetFeedback(self, request: selector_pb2.FeedbackRequest, context: grpc.ServicerContext) -> selector_pb2.FeedbackRows:
        """Return rows of scores. If the requested rows do not fit into a message, return fewer rows."""
        found = self._selector.feedback(RunId(request.run_id)).get(request.trigger_id, request.attempt, request.position)
        limit = min(request.limit, items_per_message(self._endpoint, feedback_row_bytes(found.header)))
        return feedback_to_proto(found.rows(request.position, request.position + limit), request.position)

    def GetSelectionSummary(
        self, request: selector_pb2.TriggerId, context: grpc.ServicerContext
    ) -> selector_pb2.SelectionSummary:
        """Count a trigger's candidates and its chosen samples; NOT_FOUND if the trigger does not exist."""
        found = self._selector.summary(RunId(request.run_id), request.trigger_id)
        return to_message(found, selector_pb2.SelectionSummary)

    def DeleteRun(self, request: selector_pb2.SelectorRunId, context: grpc.ServicerContext) -> common_pb2.Empty:
        """Delete a run with its samples and trigger sets. An unknown run is not an error."""
        with bind(run_id=request.run_id):
            self._selector.delete_run(RunId(request.run_id))
        return common_pb2.Empty()
