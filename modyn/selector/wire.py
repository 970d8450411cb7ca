"""Converters record ↔ proto of the selector's calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modyn.proto import selector_pb2
from modyn.records import RunId, TriggerSetInfo
from modyn.rpc.wire import from_struct, to_struct


def run_to_proto(
    run_id: RunId, dataset: str, selection_strategy: Mapping[str, Any], seed: int, data: Mapping[str, Any] | None
) -> selector_pb2.SelectorRun:
    return selector_pb2.SelectorRun(
        run_id=run_id,
        dataset=dataset,
        selection_strategy=to_struct(selection_strategy),
        seed=seed,
        data=None if data is None else to_struct(data),
    )


def data_section_from_proto(message: selector_pb2.SelectorRun) -> dict[str, Any] | None:
    return from_struct(message.data) if message.HasField("data") else None


def trigger_set_to_proto(info: TriggerSetInfo) -> selector_pb2.TriggerSet:
    return selector_pb2.TriggerSet(
        run_id=info.run_id,
        trigger_id=info.trigger_id,
        num_keys=info.num_keys,
        partition_size=info.partition_size,
        keys_checksum=info.keys_checksum,
    )


def trigger_set_from_proto(message: selector_pb2.TriggerSet) -> TriggerSetInfo:
    return TriggerSetInfo(
        RunId(message.run_id), message.trigger_id, message.num_keys, message.partition_size, message.keys_checksum
    )
