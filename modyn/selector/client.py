"""Typed client of the selector service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from modyn.config.system import Endpoint
from modyn.proto import selector_pb2, selector_pb2_grpc
from modyn.records import KeysAndWeights, RunId, SampleBatch, TriggerSetInfo
from modyn.rpc.client import SectionClient
from modyn.rpc.columns import batch_to_proto, items_per_message, share_from_proto
from modyn.rpc.retry import Retrier, RetryPolicy
from modyn.rpc.wire import from_struct, to_struct

SAMPLES_PER_CALL = 131_072
"""Samples in one Inform message (3 MiB): larger batches are split, which the position makes harmless."""
_SAMPLE_BYTES = 24
RETRY_S = 30.0
"""For how long keys are asked for again while the selector cannot be reached: a training needs them in its middle."""
TRIGGER_DEADLINE_S = 3600.0
"""Selecting from hundreds of millions of samples takes minutes."""


class SelectorClient(SectionClient):
    """Calls of the selector, which acts on the section `selection_strategy`: NotFoundError for an unknown run or trigger, ConflictError
    when a call does not fit what the run already holds, UnavailableError when the service cannot be reached. All may be repeated."""

    _Stub = selector_pb2_grpc.SelectorStub

    def __init__(self, endpoint: Endpoint, wait_s: float = 10.0) -> None:
        super().__init__(endpoint, wait_s)
        self._samples_per_call = min(SAMPLES_PER_CALL, items_per_message(endpoint, _SAMPLE_BYTES))

    def register_run(
        self,
        run_id: RunId,
        dataset: str,
        selection_strategy: Mapping[str, Any],
        seed: int,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Makes a run known. A no-op if it is known with equal arguments, AlreadyExistsError if with others. data: that section of the
        pipeline, kept as it was given first, for who reads trigger sets without the pipeline."""
        request = selector_pb2.SelectorRun(
            run_id=run_id,
            dataset=dataset,
            selection_strategy=to_struct(selection_strategy),
            seed=seed,
            data=None if data is None else to_struct(data),
        )
        self._stub.RegisterRun(request)

    def data_section(self, run_id: RunId) -> dict[str, Any] | None:
        """The `data` section that the run was registered with; None if it was without."""
        found = self._stub.GetRun(selector_pb2.SelectorRunId(run_id=run_id))
        return from_struct(found.data) if found.HasField("data") else None

    def inform(self, run_id: RunId, position: int, samples: SampleBatch) -> int:
        """Appends `samples` at `position` of the run's stream; the number of samples held now.

        What is held already is skipped. ConflictError if `position` leaves a gap.
        """
        held = position
        for first in range(0, max(len(samples), 1), self._samples_per_call):
            part = samples.slice(first, first + self._samples_per_call)
            request = selector_pb2.InformRequest(run_id=run_id, position=position + first, samples=batch_to_proto(part))
            held = int(self._stub.Inform(request).num_samples)
        return held

    def trigger(self, run_id: RunId, trigger_id: int, num_samples: int) -> TriggerSetInfo:
        """Selects the trigger set over the first `num_samples` informed samples, or finds the one that exists.

        ConflictError if the trigger exists with another number, is not the next one, or not so many samples are held.
        """
        request = selector_pb2.TriggerRequest(run_id=run_id, trigger_id=trigger_id, num_samples=num_samples)
        return _info(self._stub.Trigger(request, timeout=TRIGGER_DEADLINE_S))

    def trigger_set(self, run_id: RunId, trigger_id: int) -> TriggerSetInfo:
        return _info(self._stub.GetTriggerSet(selector_pb2.TriggerId(run_id=run_id, trigger_id=trigger_id)))

    def keys(
        self,
        run_id: RunId,
        trigger_id: int,
        partition: int,
        worker: int = 0,
        num_workers: int = 1,
        keys_checksum: str = "",
    ) -> KeysAndWeights:
        """The equal share of worker `worker` of `num_workers` of a partition, in stream order; shares differ by at most one key.
        keys_checksum: that of the trigger set which is meant: ConflictError if there is another one now. Empty: whichever there is."""
        request = selector_pb2.KeysShareRequest(
            run_id=run_id,
            trigger_id=trigger_id,
            partition=partition,
            worker=worker,
            num_workers=num_workers,
            keys_checksum=keys_checksum,
        )
        # A stream is not repeated by the channel; this one is read to its end before anything is made of it.
        parts = Retrier(RetryPolicy(RETRY_S)).call(lambda: [share_from_proto(columns) for columns in self._stub.GetKeys(request)])
        if len(parts) == 1:
            return parts[0]
        return KeysAndWeights(
            np.concatenate([np.empty(0, np.int64), *(part.keys for part in parts)]),
            np.concatenate([np.empty(0, np.float32), *(part.weights for part in parts)]),
        )

    def delete_run(self, run_id: RunId) -> None:
        """Forgets a run and its trigger sets. A no-op for a run that is not known, so that it may be repeated."""
        self._stub.DeleteRun(selector_pb2.SelectorRunId(run_id=run_id))


def _info(reply: selector_pb2.TriggerSet) -> TriggerSetInfo:
    return TriggerSetInfo(
        RunId(reply.run_id), int(reply.trigger_id), int(reply.num_keys), int(reply.partition_size), reply.keys_checksum
    )
