"""Converters record ↔ proto of the selector's calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modyn.proto import selector_pb2
from modyn.records import RunId
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
