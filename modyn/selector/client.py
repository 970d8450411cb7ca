"""Typed client of the selector service."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from modyn.config.endpoint import Endpoint
from modyn.proto import common_pb2, selector_pb2, selector_pb2_grpc
from modyn.records import FeedbackHeader, FeedbackRows, KeysAndWeights, RunId, SampleBatch, SelectionSummary, TriggerSetInfo
from modyn.rpc.client import SectionClient
from modyn.rpc.columns import (
    batch_from_proto,
    batch_to_proto,
    feedback_from_proto,
    feedback_row_bytes,
    feedback_to_proto,
    items_per_message,
    share_from_proto,
)
from modyn.rpc.retry import CancellationToken, Retrier, RetryPolicy
from modyn.rpc.wire import from_message, from_struct, to_message, to_struct

SAMPLES_PER_CALL = 131_072
"""Samples in one Inform message (3 MiB). Larger batches are split, which the position makes harmless."""
_SAMPLE_BYTES = 24
FEEDBACK_PER_MESSAGE = 65_536
"""Samples whose scores are in one message, if they are not larger than it."""
RETRY_S = 30.0
"""For how long a request for keys is repeated while the selector cannot be reached: a training depends on it."""
TRIGGER_DEADLINE_S = 3600.0
"""Selecting from hundreds of millions of samples takes minutes."""


class SelectorClient(SectionClient):
    """Calls of the selector, which acts on the section `selection_strategy`. All may be repeated.

    Raises: NotFoundError: the run or trigger is unknown. ConflictError: the call does not fit what the run already holds.
        UnavailableError: the service cannot be reached.
    """

    _Stub = selector_pb2_grpc.SelectorStub

    def __init__(self, endpoint: Endpoint, wait_s: float = 10.0) -> None:
        """Args: wait_s: seconds for which a call is repeated while the service cannot be reached."""
        super().__init__(endpoint, wait_s)
        self._endpoint = endpoint
        self._samples_per_call = min(SAMPLES_PER_CALL, items_per_message(endpoint, _SAMPLE_BYTES))

    def asked_scores(self, pipeline: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of the scores that the selection of a whole pipeline asks trainings for; none if its section is wrong."""
        return tuple(self._stub.ValidateSection(common_pb2.SectionRequest(pipeline=to_struct(pipeline))).scores)

    def register_run(
        self,
        run_id: RunId,
        dataset: str,
        selection_strategy: Mapping[str, Any],
        seed: int,
        data: Mapping[str, Any] | None = None,
        dataset_identity: str = "",
        online: Mapping[str, Any] | None = None,
    ) -> None:
        """Register a run; a no-op if it is registered with equal arguments.

        Args:
            dataset: its name.
            selection_strategy: that section of the pipeline.
            seed: of all random choices of the selection.
            data: that section of the pipeline, for readers of trigger sets that lack the pipeline. Kept as first given.
            dataset_identity: of the registration that the keys are of (`DatasetInfo.identity`): triggers and readers refuse another of that
                name; empty: any.
            online: that section of the pipeline; None: it has none.

        Raises: AlreadyExistsError: it is registered with other arguments. ConfigError: the section is wrong.
        """
        section, strategy = None if data is None else to_struct(data), to_struct(selection_strategy)
        run = selector_pb2.SelectorRun(run_id=run_id, dataset=dataset, selection_strategy=strategy, seed=seed, data=section)
        run.dataset_identity = dataset_identity
        if online is not None:
            run.online.CopyFrom(to_struct(online))
        self._stub.RegisterRun(run)

    def data_section(self, run_id: RunId) -> dict[str, Any] | None:
        """Return the `data` section that the run was registered with; None if it was registered without."""
        run = self._stub.GetRun(selector_pb2.SelectorRunId(run_id=run_id))
        return from_struct(run.data) if run.HasField("data") else None

    def dataset(self, run_id: RunId) -> tuple[str, str]:
        """Return the dataset that the run's keys are of, and the identity of its registration; empty: not known. Raises: NotFoundError."""
        run = self._stub.GetRun(selector_pb2.SelectorRunId(run_id=run_id))
        return run.dataset, run.dataset_identity

    def inform(self, run_id: RunId, position: int, samples: SampleBatch) -> int:
        """Append samples to the run's stream; those that the run already holds are skipped.

        Args: position: of the first of `samples` in the stream.
        Returns: the number of samples that the run holds now.
        Raises: ConflictError: `position` leaves a gap.
        """
        num_held = position
        for first in range(0, max(len(samples), 1), self._samples_per_call):
            batch = samples.slice(first, first + self._samples_per_call)
            request = selector_pb2.InformRequest(run_id=run_id, position=position + first, samples=batch_to_proto(batch))
            num_held = int(self._stub.Inform(request).num_samples)
        return num_held

    def inform_labels(self, run_id: RunId, number: int, samples: SampleBatch) -> int:
        """Append samples whose labels have come, in this order; those that are held already are skipped. The first call says from which sample on
        labels come late: before it each sample came with its label.

        Args: number: of the first of them among the samples with labels.
        Returns: how many samples have labels now.
        Raises: ConflictError: `number` leaves a gap, or other samples are held.
        """
        num_held = number
        for first in range(0, max(len(samples), 1), self._samples_per_call):
            batch = samples.slice(first, first + self._samples_per_call)
            request = selector_pb2.InformRequest(run_id=run_id, position=number + first, samples=batch_to_proto(batch))
            num_held = int(self._stub.InformLabels(request).num_samples)
        return num_held

    def samples(self, run_id: RunId, position: int, limit: int, *, labelled: bool = False) -> SampleBatch:
        """Return samples as they were informed, from `position` on: `limit` or fewer, and none only behind the last that is held.

        Args: labelled: those with labels alone, in the order of these.
        Raises: ConflictError: the run holds fewer samples than `position`.
        """
        limit = min(limit, self._samples_per_call)
        request = selector_pb2.SamplesRequest(run_id=run_id, position=position, limit=limit, labelled=labelled)
        return batch_from_proto(self._stub.GetSamples(request))

    def trigger(
        self,
        run_id: RunId,
        trigger_id: int,
        num_samples: int,
        token: CancellationToken | None = None,
        *,
        online: bool = False,
        tests_only: bool = False,
    ) -> TriggerSetInfo:
        """Select the trigger set over the first `num_samples` samples of the run with labels, or return the one that exists.

        Args: token: ends the call and the selection when it is cancelled; a trigger that is asked for again is selected anew. online: the steps of
            proactive training over the samples since the trigger before, as the section `online` says. tests_only: of these the new samples alone.
        Raises: ConflictError: the trigger exists over another number of samples, is not the next one, or the run holds fewer samples.
        """
        request = selector_pb2.TriggerRequest(
            run_id=run_id, trigger_id=trigger_id, num_samples=num_samples, online=online, tests_only=tests_only
        )
        return from_message(self._stub.Trigger(request, timeout=TRIGGER_DEADLINE_S, token=token), TriggerSetInfo)

    def trigger_set(self, run_id: RunId, trigger_id: int) -> TriggerSetInfo:
        """Describe the existing set of trigger `trigger_id` of a run, without its keys. Raises: NotFoundError."""
        return from_message(
            self._stub.GetTriggerSet(selector_pb2.TriggerId(run_id=run_id, trigger_id=trigger_id)), TriggerSetInfo
        )

    def keys(self, run_id: RunId, trigger_id: int, partition: int, keys_checksum: str = "") -> KeysAndWeights:
        """Return the keys, int64 (n,), and weights, float32 (n,), of a partition, in stream order.

        Args: partition: its number, from 0. keys_checksum: that of the expected trigger set; empty accepts any.
        Raises: ConflictError: the trigger set has another checksum.
        """
        request = selector_pb2.PartitionRequest(
            run_id=run_id, trigger_id=trigger_id, partition=partition, keys_checksum=keys_checksum
        )
        # The channel repeats no streams; this one is read to its end before its chunks are used, so it may be repeated here.
        chunks = Retrier(RetryPolicy(RETRY_S)).call(
            lambda: [share_from_proto(columns) for columns in self._stub.GetKeys(request)]
        )
        return chunks[0] if len(chunks) == 1 else KeysAndWeights.concatenate(chunks)

    def put_feedback(self, header: FeedbackHeader, rows: Callable[[], Iterable[FeedbackRows]]) -> FeedbackHeader:
        """Keep what a training has scored with its run, complete or not at all. Idempotent by (run, trigger, attempt).

        Args: rows: returns all rows anew, in parts of any size; called again when the stream is cut.
        Returns: the header of what is kept now: that of a later attempt, if there is one.
        Raises: ConflictError: the trigger set is another one. InvalidArgumentError: the rows are not as the header says.
        """
        size = min(FEEDBACK_PER_MESSAGE, items_per_message(self._endpoint, feedback_row_bytes(header)))

        def parts() -> Iterator[selector_pb2.FeedbackPart]:
            yield selector_pb2.FeedbackPart(header=to_message(header, selector_pb2.FeedbackHeader))
            position = 0
            for chunk in rows():
                for first in range(0, len(chunk), size):
                    part = chunk.slice(first, first + size)
                    yield selector_pb2.FeedbackPart(rows=feedback_to_proto(part, position))
                    position += len(part)

        # The channel repeats no streams; this one is made anew.
        return self._retrier.call(lambda: from_message(self._stub.PutFeedback(parts()), FeedbackHeader))

    def feedback_headers(self, run_id: RunId) -> list[FeedbackHeader]:
        """Return what trainings of a run have scored, by trigger. Raises: NotFoundError: the run is unknown."""
        found = self._stub.ListFeedback(selector_pb2.SelectorRunId(run_id=run_id))
        return [from_message(header, FeedbackHeader) for header in found.feedback]

    def feedback(self, header: FeedbackHeader) -> Iterator[FeedbackRows]:
        """Yield what a training has scored, in the order of the training. Args: header: as `feedback_headers` returned it.

        Raises: ConflictError: another attempt at the training has taken its place.
        """
        position = 0
        while position < header.num_rows:
            request = selector_pb2.FeedbackRequest(
                run_id=header.run_id,
                trigger_id=header.trigger_id,
                attempt=header.attempt,
                position=position,
                limit=FEEDBACK_PER_MESSAGE,
            )
            rows = feedback_from_proto(self._stub.GetFeedback(request))
            yield rows
            position += len(rows)

    def summary(self, run_id: RunId, trigger_id: int) -> SelectionSummary:
        """Return what a trigger chose from and what it chose. The first call for a trigger reads its window once. Raises: NotFoundError."""
        request = selector_pb2.TriggerId(run_id=run_id, trigger_id=trigger_id)
        return from_message(self._stub.GetSelectionSummary(request, timeout=TRIGGER_DEADLINE_S), SelectionSummary)

    def delete_run(self, run_id: RunId) -> None:
        """Delete a run and its trigger sets. A no-op for an unknown run, so that it may be repeated."""
        self._stub.DeleteRun(selector_pb2.SelectorRunId(run_id=run_id))
