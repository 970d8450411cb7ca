"""The samples of a run: history replayed in the order (timestamp, key), or live data in the order of arrival.

A thread reads ahead by a few batches, so that the next batch is there when a training ends.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from modyn.records import Interval, SampleBatch
from modyn.rpc.retry import ResumingStream, Retrier
from modyn.storage.client import StorageClient
from modyn.supervisor.records import RunMode

READ_AHEAD = 2
"""Batches."""
IDLE_AFTER_S = 0.5
"""A production run that has received nothing for so long waits for data."""


@dataclass(frozen=True, slots=True)
class StreamSource:
    """Which samples, and in which order."""

    dataset: str
    mode: RunMode
    interval: Interval
    batch_size: int


class SampleStream:
    """The batches of a source after a position. Survives storage being away, for as long as the retrier's policy allows."""

    def __init__(self, storage: StorageClient, source: StreamSource, after: tuple[int, int] | None, retrier: Retrier) -> None:
        """Args: after: (timestamp, key) of the last sample that is not wanted any more; None: from the start."""
        self._source = source
        self._token = retrier.token

        def open_after(last: tuple[int, int] | None) -> Iterator[SampleBatch]:
            if source.mode is RunMode.EXPERIMENT:
                return storage.samples_in_interval(source.dataset, source.interval, source.batch_size, last)
            return storage.new_samples(source.dataset, 0 if last is None else last[1] + 1, source.batch_size)

        def last_of(batch: SampleBatch) -> tuple[int, int] | None:
            return int(batch.timestamps[-1]), int(batch.keys[-1])

        self._reader = _Reader(ResumingStream(open_after, after, last_of, retrier))
        self._token.on_cancel(lambda _: self._reader.close())

    def read(self, idle: Callable[[], None]) -> SampleBatch | None:
        """The next batch, never empty; None at the end. Calls `idle` once when it has to wait for data to arrive."""
        while True:
            batch = self._reader.take(IDLE_AFTER_S)
            if batch is _NOTHING_YET:
                self._token.check()
                if self._source.mode is RunMode.PRODUCTION:
                    idle()
                batch = self._reader.take(None)
            self._token.check()
            if not isinstance(batch, SampleBatch):
                return None
            batch = _within(batch, self._source.interval)
            if len(batch):
                return batch

    def close(self) -> None:
        self._reader.close()


def _within(batch: SampleBatch, interval: Interval) -> SampleBatch:
    """The samples of the batch whose timestamp lies in the interval. Live data is not filtered by storage."""
    wanted = (batch.timestamps >= interval.start) & (batch.timestamps < interval.end)
    return batch if wanted.all() else SampleBatch(batch.keys[wanted], batch.timestamps[wanted], batch.labels[wanted])


class _Nothing:
    """No batch has come in time."""


_NOTHING_YET = _Nothing()


class _Reader:
    """Reads ahead in a thread. `close` may be called from any thread."""

    def __init__(self, source: ResumingStream[SampleBatch, Any]) -> None:
        self._source = source
        # Guards everything below; notified on every change, since the thread and the reader of the batches both wait on it.
        self._changed = threading.Condition()
        self._batches: deque[SampleBatch] = deque()
        self._error: BaseException | None = None
        self._ended = False
        self._closed = False
        threading.Thread(target=self._read, name="sample-stream", daemon=True).start()

    def take(self, timeout_s: float | None) -> SampleBatch | _Nothing | None:
        """The next batch; None at the end or once closed; _NOTHING_YET after `timeout_s`. Raises what the source raised."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._batches) > 0 or self._ended or self._closed, timeout_s)
            if self._batches:
                self._changed.notify_all()
                return self._batches.popleft()
            if self._error is not None and not self._closed:
                raise self._error
            return None if self._ended or self._closed else _NOTHING_YET

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._source.cancel()

    def _read(self) -> None:
        try:
            for batch in self._source:
                if not self._offer(batch):
                    return
        except BaseException as error:  # noqa: BLE001 - raised in the thread that takes the batches; an error is never an end
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _offer(self, batch: SampleBatch) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: len(self._batches) < READ_AHEAD or self._closed)
            if not self._closed and len(batch):
                self._batches.append(batch)
                self._changed.notify_all()
            return not self._closed
