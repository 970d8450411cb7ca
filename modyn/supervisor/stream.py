"""The samples of a run: history replayed in the order (timestamp, key), or live data in the order of arrival.

A thread reads ahead by a few batches, so that the next batch is there when a training ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Full, Queue

from modyn.records import Interval, SampleBatch
from modyn.rpc.retry import ResumingStream, Retrier
from modyn.storage.client import LateLabelBatch, NewLabels, StorageClient
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
    end_key: int | None = None
    """The dataset's next key when the run was submitted, which bounds a replay; None: not bounded."""
    identity: str = ""
    """Identity of the registered dataset; empty: any."""
    end_label: int | None = None
    """How many of the labels that came late count in a replay; None: all."""
    first_label: int | None = None
    """Number of the first late label that a live run wants; None: it wants none."""


class SampleStream:
    """The batches of a source after a position. Survives storage being away, for as long as the retrier's policy allows."""

    def __init__(self, storage: StorageClient, source: StreamSource, after: tuple[int, int] | None, retrier: Retrier) -> None:
        """Args: after: (timestamp, key) of the last sample that has been processed; None: from the start."""

        def open_after(last: tuple[int, int] | None) -> Iterator[SampleBatch]:
            if source.mode is RunMode.EXPERIMENT:
                late = {} if source.end_label is None else {"end_label": source.end_label}
                return storage.samples_in_interval(
                    source.dataset,
                    source.interval,
                    source.batch_size,
                    last,
                    end_key=source.end_key,
                    identity=source.identity,
                    **late,
                )
            first_key = 0 if last is None else last[1] + 1
            return storage.new_samples(source.dataset, first_key, source.batch_size, source.identity)

        def last_of(batch: SampleBatch) -> tuple[int, int] | None:
            return int(batch.timestamps[-1]), int(batch.keys[-1])

        self._source = source
        self._token = retrier.token
        self._batches = ResumingStream(open_after, after, last_of, retrier)
        self._labels: NewLabels | None = None
        if source.first_label is not None:
            self._labels = storage.new_labels(source.dataset, source.first_label, source.batch_size, source.identity)
        self._ahead: Queue[SampleBatch | LateLabelBatch | BaseException | None] = Queue(READ_AHEAD + 1)
        """None: the stream has ended, or was closed. An error stands behind the batches before it."""
        # Set before the queue is emptied: the thread puts at most the batch that it holds, and sees then that it is to end.
        self._closed = threading.Event()
        for batches in (self._batches, self._labels):
            if batches is not None:
                threading.Thread(target=self._read_ahead, args=(batches,), name="sample-stream", daemon=True).start()
        self._unregister = self._token.on_cancel(lambda _: self.end())

    def read(self, idle: Callable[[], None]) -> SampleBatch | LateLabelBatch | None:
        """Return the next batch, never empty, of samples or of labels that came late; None at the end. Calls `idle` once when it has to wait for data
        to arrive.

        Raises the cause of a cancelled token, and what reading failed with, behind the batches before it.
        """
        while True:
            try:
                batch = self._ahead.get(timeout=IDLE_AFTER_S)  # Woken as below.
            except Empty:
                self._token.check()
                if self._source.mode is RunMode.PRODUCTION:
                    idle()
                # Woken by a batch, an error or the end, which `_read_ahead` puts, or by the None of `end` when the token is cancelled.
                # Not bounded in time: a production run waits for data for as long as it runs.
                batch = self._ahead.get()
            self._token.check()
            if isinstance(batch, BaseException):
                raise batch
            if batch is None or isinstance(batch, LateLabelBatch) or len(batch := _within(batch, self._source.interval)):
                return batch

    def samples(self) -> Iterator[SampleBatch]:
        """Yield the batches of a replay."""
        while (batch := self.read(lambda: None)) is not None:
            assert isinstance(batch, SampleBatch), "labels come late in production"
            yield batch

    def close(self) -> None:
        """End the stream, and the thread that reads ahead."""
        self._unregister()
        self.end()

    def end(self) -> None:
        """Make `read` return None, from any thread; what was read ahead is dropped."""
        self._closed.set()
        self._batches.cancel()
        if self._labels is not None:
            self._labels.cancel()
        # Room for the batches that the threads may hold, so that they end, and for the None that wakes the reader.
        with suppress(Empty):
            while True:
                self._ahead.get_nowait()
        with suppress(Full):  # Then there is something that wakes the reader.
            self._ahead.put_nowait(None)

    def _read_ahead(self, batches: Iterator[SampleBatch] | NewLabels) -> None:
        end: BaseException | None = None
        try:
            for batch in batches:
                if self._closed.is_set():
                    return
                if isinstance(batch, LateLabelBatch) or len(batch):
                    self._ahead.put(batch)  # Waits for room, which `read` makes batch by batch, and `end` at once.
        except BaseException as error:  # noqa: BLE001 - raised in the thread that takes the batches; an error is never an end
            end = error
        if not self._closed.is_set():
            self._ahead.put(end)


def _within(batch: SampleBatch, interval: Interval) -> SampleBatch:
    """The samples of the batch whose timestamp lies in the interval. Live data is not filtered by storage."""
    wanted = (batch.timestamps >= interval.start) & (batch.timestamps < interval.end)
    return batch if wanted.all() else SampleBatch(batch.keys[wanted], batch.timestamps[wanted], batch.labels[wanted])
