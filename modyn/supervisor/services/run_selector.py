"""Calls of the selector for one run. Each call is repeated under the run's retry policy."""

from __future__ import annotations

from collections.abc import Iterator

from modyn.records import KeysAndWeights, RunId, RunRegistration, SampleBatch, StreamWindow, TriggerSetInfo
from modyn.rpc.retry import Retrier
from modyn.selector.client import SelectorClient


class RunSelector:
    """A `SelectorClient` that is bound to one run. Each method calls the client's method of the same name with the run's id."""

    def __init__(self, client: SelectorClient, run_id: RunId, retrier: Retrier) -> None:
        self._client, self._run_id, self._retrier = client, run_id, retrier

    def register(self, run: RunRegistration) -> None:
        """See `SelectorClient.register_run`."""
        self._retrier.call(self._client.register_run, run)

    def inform(self, position: int, samples: SampleBatch) -> int:
        """See `SelectorClient.inform`."""
        return self._retrier.call(self._client.inform, self._run_id, position, samples)

    def inform_labels(self, number: int, samples: SampleBatch) -> int:
        """See `SelectorClient.inform_labels`."""
        return self._retrier.call(self._client.inform_labels, self._run_id, number, samples)

    def samples(self, position: int, limit: int, *, labelled: bool = False) -> SampleBatch:
        """See `SelectorClient.samples`."""
        return self._retrier.call(self._client.samples, self._run_id, position, limit, labelled=labelled)

    def window(self, window: StreamWindow) -> Iterator[SampleBatch]:
        """Yield the samples at the positions of a window, with any timestamps."""
        position = window.start
        while position < window.stop:
            batch = self.samples(position, window.stop - position, labelled=window.labelled)
            position += len(batch)
            yield batch

    def trigger(self, trigger_id: int, num_samples: int, *, online: bool, tests_only: bool) -> TriggerSetInfo:
        """See `SelectorClient.trigger`. The run's cancellation token ends the call."""
        which = self._run_id, trigger_id, num_samples, self._retrier.token
        return self._retrier.call(self._client.trigger, *which, online=online, tests_only=tests_only)

    def trigger_set(self, trigger_id: int) -> TriggerSetInfo:
        """See `SelectorClient.trigger_set`."""
        return self._retrier.call(self._client.trigger_set, self._run_id, trigger_id)

    def keys(self, trigger_id: int, partition: int) -> KeysAndWeights:
        """See `SelectorClient.keys`."""
        return self._retrier.call(self._client.keys, self._run_id, trigger_id, partition)

    def delete(self) -> None:
        """See `SelectorClient.delete_run`."""
        self._retrier.call(self._client.delete_run, self._run_id)
