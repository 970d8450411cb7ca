"""Typed client of the selector service."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from modyn.config.system_sections.endpoint import Endpoint
from modyn.proto import common_pb2, selector_pb2, selector_pb2_grpc
from modyn.records import (
    FeedbackHeader,
    FeedbackRows,
    KeysAndWeights,
    RunId,
    RunRegistration,
    SampleBatch,
    SelectionSummary,
    TriggerSetInfo,
)
from modyn.rpc.arrays import (
    batch_from_proto,
    batch_to_proto,
    feedback_from_proto,
    feedback_row_bytes,
    feedback_to_proto,
    items_per_message,
    share_from_proto,
)
from modyn.rpc.client import SectionClient
from modyn.rpc.retry import CancellationToken, Retrier, RetryPolicy
from modyn.rpc.wire import from_message, from_struct, to_message, to_struct

SAMPLES_PER_CALL = 131_072
"""Largest number of samples in one Inform message (3 MiB). A larger batch is split into several messages. If a later message fails, the batch can be
sent again, because the selector skips samples that it already stores.
"""
_SAMPLE_BYTES = 24
"""Size in bytes of a key, a timestamp and a label without packing."""
FEEDBACK_PER_MESSAGE = 65_536
"""Largest number of samples whose scores are sent in one message. If scores have many values, fewer samples are sent, to limit the size."""
RETRY_S = 30.0
"""Seconds for which a request for keys is repeated while the selector cannot be reached. A training cannot continue without the keys."""
TRIGGER_DEADLINE_S = 3600.0
"""Deadline of a trigger in seconds. A selection from hundreds of millions of samples takes minutes."""


class SelectorClient(SectionClient):
    """Client of the selector, which uses the section `selection_strategy`. All calls may be repeated.

    Raises: NotFoundError: the run or trigger is unknown. ConflictError: the call conflicts with the stored state of the run. UnavailableError: the
    service cannot be reached.
    """

    _Stub = selector_pb2_grpc.SelectorStub

    def __init__(self, endpoint: Endpoint, wait_s: float = 10.0) -> None:
        """Args: wait_s: seconds for which a call is repeated while the service cannot be reached."""
        super().__init__(endpoint, wait_s)
        self._endpoint = endpoint
        self._samples_per_call = min(SAMPLES_PER_CALL, items_per_message(endpoint, _SAMPLE_BYTES))

    def asked_scores(self, pipeline: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of the scores that the selection of a pipeline needs from trainings; empty if the section of the selection is invalid."""
        return tuple(self._stub.ValidateSection(common_pb2.SectionRequest(pipeline=to_struct(pipeline))).scores)

    def register_run(self, run: RunRegistration) -> None:
        """Register a run. The call has no effect if the run is registered with equal arguments.

        Raises: AlreadyExistsError: the run is registered with other arguments. ConfigError: the section `selection_strategy` is invalid.
        """
        self._stub.RegisterRun(to_message(run, selector_pb2.SelectorRun))

    def data_section(self, run_id: RunId) -> dict[str, Any] | None:
        """Return the `data` section of the run's registration, or None."""
        run = self._stub.GetRun(selector_pb2.SelectorRunId(run_id=run_id))
        return from_struct(run.data) if run.HasField("data") else None

    def dataset(self, run_id: RunId) -> tuple[str, str]:
        """Return the name of the dataset of the run's keys, and the dataset's identity; an unknown identity is empty. Raises: NotFoundError."""
        run = self._stub.GetRun(selector_pb2.SelectorRunId(run_id=run_id))
        return run.dataset, run.dataset_identity

    def inform(self, run_id: RunId, position: int, samples: SampleBatch) -> int:
        """Append samples to the run's stream, except samples that are already stored.

        Args: position: position of the first of `samples` in the stream. Returns: the number of stored samples of the run.
        Raises: ConflictError: `position` leaves a gap.
        """
        num_held = position
        for first in range(0, max(len(samples), 1), self._samples_per_call):
            batch = samples.slice(first, first + self._samples_per_call)
            request = selector_pb2.InformRequest(run_id=run_id, position=position + first, samples=batch_to_proto(batch))
            num_held = int(self._stub.Inform(request).num_samples)
        return num_held

    def inform_labels(self, run_id: RunId, number: int, samples: SampleBatch) -> int:
        """Append samples whose labels have arrived, in the order of the labels, except samples that are already stored. In the first call, `number`
        is the position of the first sample that arrived without its label.

        Args: number: index of the first of these samples among all samples with labels.
        Returns: the number of samples with labels now. Raises: ConflictError: `number` leaves a gap, or other samples are stored.
        """
        num_held = number
        for first in range(0, max(len(samples), 1), self._samples_per_call):
            batch = samples.slice(first, first + self._samples_per_call)
            request = selector_pb2.InformRequest(run_id=run_id, position=number + first, samples=batch_to_proto(batch))
            num_held = int(self._stub.InformLabels(request).num_samples)
        return num_held

    def samples(self, run_id: RunId, position: int, limit: int, *, labelled: bool = False) -> SampleBatch:
        """Return at most `limit` samples from `position` on, as `inform` received them. The result is empty only if `position` is after the last
        sample.

        Args: labelled: return only samples with labels, in the order in which their labels arrived.
        Raises: ConflictError: the run has fewer than `position` samples.
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
        """Select the trigger set over the first `num_samples` labelled samples of the run, or return the existing set.

        Args: token: token that cancels the call and the selection. A cancelled trigger can be repeated; the selection then starts again. online:
        select the steps of proactive training over the samples since the previous trigger, by the section `online`. tests_only: select only the new
        samples of these steps. Raises: ConflictError: the trigger exists with another number of samples, the trigger is not the next trigger, or the
        run has fewer samples.
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

        Args: partition: number of the partition, from 0. keys_checksum: checksum of the expected trigger set; empty accepts any.
        Raises: ConflictError: the trigger set has another checksum.
        """
        request = selector_pb2.PartitionRequest(
            run_id=run_id, trigger_id=trigger_id, partition=partition, keys_checksum=keys_checksum
        )
        # The channel does not retry streams. A retry is safe here, because all chunks are received before a chunk is used.
        chunks = Retrier(RetryPolicy(RETRY_S)).call(
            lambda: [share_from_proto(columns) for columns in self._stub.GetKeys(request)]
        )
        return chunks[0] if len(chunks) == 1 else KeysAndWeights.concatenate(chunks)

    def put_feedback(self, header: FeedbackHeader, rows: Callable[[], Iterable[FeedbackRows]]) -> FeedbackHeader:
        """Store the scores of a training, all or none. Repeating the call for the same run, trigger and attempt has no further effect.

        Args: rows: function that returns all rows in chunks of any size; each retry calls this function again. Returns: the header of the stored
        scores, which may be the scores of a later attempt. Raises: ConflictError: the trigger set has another checksum than the header.
        InvalidArgumentError: the rows do not match the header.
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

        # The channel does not retry streams. Each retry therefore makes a new stream with all parts.
        return self._retrier.call(lambda: from_message(self._stub.PutFeedback(parts()), FeedbackHeader))

    def feedback_headers(self, run_id: RunId) -> list[FeedbackHeader]:
        """Return the headers of the scores of a run's trainings, ordered by trigger. Raises: NotFoundError: the run is unknown."""
        found = self._stub.ListFeedback(selector_pb2.SelectorRunId(run_id=run_id))
        return [from_message(header, FeedbackHeader) for header in found.feedback]

    def feedback(self, header: FeedbackHeader) -> Iterator[FeedbackRows]:
        """Yield the scores of a training, in the order of the training. Args: header: a result of `feedback_headers`.

        Raises: ConflictError: the scores of another attempt at the training have replaced these scores.
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
        """Return a summary of a trigger's candidates and its chosen samples. The first call for a trigger reads its window. Raises:
        NotFoundError.
        """
        request = selector_pb2.TriggerId(run_id=run_id, trigger_id=trigger_id)
        return from_message(self._stub.GetSelectionSummary(request, timeout=TRIGGER_DEADLINE_S), SelectionSummary)

    def delete_run(self, run_id: RunId) -> None:
        """Delete a run and its trigger sets. The call may be repeated, because it has no effect for an unknown run."""
        self._stub.DeleteRun(selector_pb2.SelectorRunId(run_id=run_id))
