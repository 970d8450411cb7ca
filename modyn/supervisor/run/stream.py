"""The stream of a run: history replayed in the order (timestamp, key), or live data in the order of arrival.

A thread reads a few batches ahead, so that the next batch is ready when a training ends.
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
from modyn.supervisor.journal.records import RunMode

READ_AHEAD = 2
"""Number of batches to read ahead."""
IDLE_AFTER_S = 0.5
"""Time without samples after which a production run waits for data."""


@dataclass(frozen=True, slots=True)
class StreamSource:
    """Description of the samples of a run and of the order of these samples."""

    dataset: str
    mode: RunMode
    interval: Interval
    batch_size: int
    end_key: int | None = None
    """The dataset's next key at submission, which bounds a replay; None if the replay is not bounded."""
    identity: str = ""
    """Identity of the registered dataset; empty to accept every registration."""
    end_label: int | None = None
    """Number of late labels that count in a replay; None if all late labels count."""
    first_label: int | None = None
    """Number of the first late label that a live run reads; None if the run reads no late labels."""


class SampleStream:
    """Reads the batches of a source after a position. While storage is unavailable, the stream waits as long as the retrier's policy allows."""

    def __init__(self, storage: StorageClient, source: StreamSource, after: tuple[int, int] | None, retrier: Retrier) -> None:
        """Args: after: (timestamp, key) of the last processed sample; None to read from the start."""

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
            # In production, samples arrive in the order of their keys, and the largest processed key is enough to continue.
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
        """Queue of batches. None follows the last batch when the stream has ended or was closed. An error follows all earlier batches."""
        # Set before the queue is emptied. Each thread then puts at most one more batch, which it has read already, and ends.
        self._closed = threading.Event()
        for batches in (self._batches, self._labels):
            if batches is not None:
                threading.Thread(target=self._read_ahead, args=(batches,), name="sample-stream", daemon=True).start()
        self._unregister = self._token.on_cancel(lambda _: self.end())

    def read(self, idle: Callable[[], None]) -> SampleBatch | LateLabelBatch | None:
        """Return the next batch of samples or of late labels, which is never empty; None at the end. Before a wait for data, `idle` is called once.

        Raises: the cause of a cancelled token; or an error of reading, after all batches read before the error.
        """
        while True:
            try:
                batch = self._ahead.get(timeout=IDLE_AFTER_S)  # Woken like the wait below.
            except Empty:
                self._token.check()
                if self._source.mode is RunMode.PRODUCTION:
                    idle()
                # Woken by a batch, an error or the end, which `_read_ahead` puts, or by the None of `end` when the token is cancelled.
                # The wait has no time limit, because a production run waits for data until the run ends.
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
        """Make `read` return None, and drop batches that were read ahead. May be called from any thread."""
        self._closed.set()
        self._batches.cancel()
        if self._labels is not None:
            self._labels.cancel()
        # An empty queue has room for the last batches of the threads, so that the threads end, and for the None that wakes the reader.
        with suppress(Empty):
            while True:
                self._ahead.get_nowait()
        with suppress(Full):  # If the queue is full, another item wakes the reader.
            self._ahead.put_nowait(None)

    def _read_ahead(self, batches: Iterator[SampleBatch] | NewLabels) -> None:
        end: BaseException | None = None
        try:
            for batch in batches:
                if self._closed.is_set():
                    return
                if isinstance(batch, LateLabelBatch) or len(batch):
                    self._ahead.put(batch)  # Waits until `read` removes a batch from the queue or `end` empties the queue.
        except BaseException as error:  # noqa: BLE001 - `read` raises the error in the run's thread
            end = error
        if not self._closed.is_set():
            self._ahead.put(end)


def _within(batch: SampleBatch, interval: Interval) -> SampleBatch:
    """Return the samples whose timestamps are in the interval. Storage does not filter live data."""
    wanted = (batch.timestamps >= interval.start) & (batch.timestamps < interval.end)
    return batch if wanted.all() else SampleBatch(batch.keys[wanted], batch.timestamps[wanted], batch.labels[wanted])
