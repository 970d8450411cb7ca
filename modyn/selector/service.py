"""The gRPC face of the selector: decode, call, encode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import grpc

from modyn.config.base import Problem
from modyn.config.system import Endpoint
from modyn.db.engine import open_database
from modyn.proto import common_pb2, selector_pb2, selector_pb2_grpc
from modyn.records import RunId, TriggerSetInfo
from modyn.rpc.columns import batch_from_proto, items_per_message, share_to_proto
from modyn.rpc.logs import bind
from modyn.rpc.server import Registration, ServiceContext
from modyn.rpc.wire import from_struct, plugins_to_proto, problems_to_proto, to_struct
from modyn.selector.presampling import PRESAMPLING
from modyn.selector.selection import SELECTION, validate_selection
from modyn.selector.selector import KEYS_PER_PIECE, Selector
from modyn.selector.tables import SCHEMA

_KEY_BYTES = 12
"""Of a key with its weight, where they cannot be packed."""


class SelectorServicer(selector_pb2_grpc.SelectorServicer):
    """Errors leave as they are raised; the server translates them."""

    def __init__(self, selector: Selector, endpoint: Endpoint) -> None:
        self._selector = selector
        self._keys_per_message = min(KEYS_PER_PIECE, items_per_message(endpoint, _KEY_BYTES))

    def ValidateSection(self, request: common_pb2.SectionRequest, context: grpc.ServicerContext) -> common_pb2.SectionReply:
        return problems_to_proto(validate_selection_section(from_struct(request.pipeline)))

    def ListPlugins(self, request: common_pb2.Empty, context: grpc.ServicerContext) -> common_pb2.PluginList:
        return plugins_to_proto(SELECTION, PRESAMPLING)

    def RegisterRun(self, request: selector_pb2.SelectorRun, context: grpc.ServicerContext) -> common_pb2.Empty:
        strategy = from_struct(request.selection_strategy)
        with bind(run_id=request.run_id):
            data = from_struct(request.data) if request.HasField("data") else None
            self._selector.register_run(RunId(request.run_id), request.dataset, strategy, request.seed, data)
        return common_pb2.Empty()

    def GetRun(self, request: selector_pb2.SelectorRunId, context: grpc.ServicerContext) -> selector_pb2.SelectorRun:
        run = self._selector.run(RunId(request.run_id))
        return selector_pb2.SelectorRun(
            run_id=run.run_id,
            dataset=run.dataset,
            selection_strategy=to_struct(run.selection_strategy),
            seed=run.seed,
            data=None if run.data is None else to_struct(run.data),
        )

    def Inform(self, request: selector_pb2.InformRequest, context: grpc.ServicerContext) -> selector_pb2.InformReply:
        with bind(run_id=request.run_id):
            held = self._selector.inform(RunId(request.run_id), request.position, batch_from_proto(request.samples))
        return selector_pb2.InformReply(num_samples=held)

    def Trigger(self, request: selector_pb2.TriggerRequest, context: grpc.ServicerContext) -> selector_pb2.TriggerSet:
        with bind(run_id=request.run_id, trigger_id=request.trigger_id):
            return _encode(self._selector.trigger(RunId(request.run_id), request.trigger_id, request.num_samples))

    def GetTriggerSet(self, request: selector_pb2.TriggerId, context: grpc.ServicerContext) -> selector_pb2.TriggerSet:
        return _encode(self._selector.trigger_set(RunId(request.run_id), request.trigger_id))

    def GetKeys(self, request: selector_pb2.KeysShareRequest, context: grpc.ServicerContext) -> Iterator[common_pb2.KeyColumns]:
        share = self._selector.keys(
            RunId(request.run_id),
            request.trigger_id,
            request.partition,
            request.worker,
            request.num_workers,
            request.keys_checksum,
            num_at_once=self._keys_per_message,
        )
        yield from (share_to_proto(part) for part in share)

    def DeleteRun(self, request: selector_pb2.SelectorRunId, context: grpc.ServicerContext) -> common_pb2.Empty:
        with bind(run_id=request.run_id):
            self._selector.delete_run(RunId(request.run_id))
        return common_pb2.Empty()


def validate_selection_section(pipeline: Mapping[str, object]) -> list[Problem]:
    """Every mistake of a pipeline's `selection_strategy`."""
    section = pipeline.get("selection_strategy")
    if section is None:
        return [Problem("selection_strategy", "is required: which samples to train on")]
    if not isinstance(section, Mapping):
        return [
            Problem("selection_strategy", f"{section!r} is wrong: write a mapping with `name` and the options of that strategy")
        ]
    return validate_selection(section)


def build(context: ServiceContext) -> list[Registration]:
    """Opens the schema, repairs what a crash has left, and hands over the servicer."""
    database = open_database(context.config, SCHEMA, "modyn.selector.migrations")
    context.on_shutdown(database.close)
    selector = Selector(database, context.directory)
    context.on_shutdown(selector.close)
    selector.recover()
    return [
        Registration(
            selector_pb2_grpc.add_SelectorServicer_to_server,
            SelectorServicer(selector, context.config.endpoint("selector")),
            "modyn.Selector",
        )
    ]


def _encode(info: TriggerSetInfo) -> selector_pb2.TriggerSet:
    return selector_pb2.TriggerSet(
        run_id=info.run_id,
        trigger_id=info.trigger_id,
        num_keys=info.num_keys,
        partition_size=info.partition_size,
        keys_checksum=info.keys_checksum,
    )
