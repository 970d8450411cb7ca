"""Threads that predict batches of one model version. Each request gets the outputs of its own rows, or an error."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Final, NamedTuple

import numpy as np

from modyn.errors import CancelledError, ConflictError, DeadlineError, InvalidArgumentError, ModynError, UserCodeError
from modyn.rpc.logs import get_logger
from modyn.serving.batch_queue import BatchedRequest, BatchLimits, BatchQueue, Done, Outcome
from modyn.serving.messages.signature import Tensors
from modyn.serving.versions.predictor import Predictor, VersionName

_SMOOTHING: Final = 0.2
"""Weight of the newest batch in the exponential moving average of the time of a batch."""
_MAX_INLINE: Final = 4
"""Largest number of batches that a caller predicts in a row, so that the caller's thread has time for other work."""


class BatchReport(NamedTuple):
    """Measurements of one predicted batch, for metrics."""

    requests: int
    rows: int
    seconds: float
    waited_s: float
    """Seconds that the oldest request of the batch waited."""


class Batcher:
    """The queue of one model version, and the threads that predict its requests. Thread-safe.

    While batches are quick (`BatchLimits.inline_s`), a caller may predict in its own thread. A batch of a small model takes less time than a switch
    to another thread, because that thread must first get the interpreter's lock. At most `threads` batches are predicted at one time.

    If a batch fails, each of its requests is predicted alone, so that one bad request does not make the other requests fail.

    Args: predictor: closed by the last thread after `close`. report: called after each batch. clock: seconds, monotonic.
    """

    def __init__(
        self,
        name: VersionName,
        predictor: Predictor,
        limits: BatchLimits,
        *,
        threads: int = 1,
        report: Callable[[BatchReport], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.limits = name, limits
        self._predictor, self._report, self._clock = predictor, report, clock
        self._signature = predictor.signature
        self._names = [tensor.name for tensor in self._signature.inputs]
        self._queue = BatchQueue(limits)
        # Requests without an outcome. A removal is atomic, and the thread that removes a request calls its `done`. Therefore `done` is called once.
        self._open: dict[BatchedRequest, None] = {}
        # Protects the queue and the fields below. Re-entrant, because `_next_batch` calls `_take` while it holds the lock.
        self._lock = threading.RLock()
        # Wakes the threads when a request was added, when a batch has ended, and when the batcher is closed.
        self._changed = threading.Condition(self._lock)
        self._closing = False
        self._alive, self._max_active = threads, threads
        self._active = 0  # batches that are being predicted
        # Moving average of the processor time of a batch. The clock's time would include waits for the interpreter's lock.
        self._batch_s = math.inf
        self._by_clock = False  # whether the next batch is timed by the clock alone
        self._threads = [
            threading.Thread(target=self._work, name=f"predict-{name.version}-{i}", daemon=True) for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def num_waiting(self) -> int:
        """Number of requests in the queue."""
        return len(self._queue)

    @property
    def is_quick(self) -> bool:
        """Whether a caller may predict batches in its own thread."""
        return self._batch_s <= self.limits.inline_s

    def submit(
        self, inputs: Tensors, done: Done, timeout_s: float | None = None, *, inline: bool = False, at_once: bool = False
    ) -> BatchedRequest:
        """Check a request and add it to the queue.

        Args: timeout_s: replaces the timeout of the limits if `timeout_s` is shorter. inline: the caller calls `run_due` soon, so no thread is woken.
        at_once: predict in this call; an idle model gets the request without the queue.
        Raises: InvalidArgumentError: the request does not fit the signature, or has too many rows for a batch. OverloadedError: the queue is full.
        ConflictError: the batcher is closed.
        """
        rows = self._signature.check_inputs(inputs)
        if rows > self.limits.max_batch_size and self._signature.is_batched:
            raise InvalidArgumentError(
                f"the request has {rows} rows; {self.name} takes at most {self.limits.max_batch_size} (serving.max_batch_size): send several requests"
            )
        now = self._clock()
        wait_s = self.limits.timeout_s if timeout_s is None else min(timeout_s, self.limits.timeout_s)
        # If the model has no batch dimension, each request is a group of its own.
        group: Hashable = tuple([inputs[name].shape[1:] for name in self._names]) if self._signature.is_batched else object()
        request = BatchedRequest(inputs, rows, group, now, now + wait_s, done)
        with self._lock:
            if self._closing:
                raise ConflictError(f"{self.name} is unloaded; send the request again")
            is_idle = at_once and self._active < self._max_active and not len(self._queue)
            if is_idle:
                self._active += 1
            else:
                self._queue.add(request)
            self._open[request] = None
            if not inline and not at_once:
                self._changed.notify()
        if is_idle:
            self._predict([request])
            self._end_batch()
        if at_once and len(self._queue):
            self.run_due()
        return request

    def run_due(self) -> None:
        """Predict due batches in this thread. If `threads` batches are being predicted already, the threads of those batches predict the remaining
        requests."""
        for _ in range(_MAX_INLINE):
            if not (batch := self._take(self._clock())):
                break
            self._predict(batch)
            self._end_batch()
        with self._changed:
            if len(self._queue):  # these requests are not due yet, or exceed the number of batches of this call
                self._changed.notify()

    def cancel(self, request: BatchedRequest) -> None:
        """End a request with CancelledError, unless the request has ended. A request that still waits is not predicted."""
        self._end_early(request, CancelledError("the client has gone"))

    def end_overdue(self) -> None:
        """End the requests whose deadline has passed, including requests of batches that are being predicted. Call this method often."""
        now = self._clock()
        for request in list(self._open):
            if request.deadline <= now:
                waited_s = now - request.arrived
                self._end_early(
                    request,
                    DeadlineError(f"{self.name} did not answer within {waited_s:.3g} s; send it again, or less at a time"),
                )

    def close(self) -> None:
        """Refuse further requests. After all requests have their outcomes, the threads end and the predictor is closed."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the threads after `close`. Returns whether all threads have ended."""
        give_up = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, give_up - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _end_early(self, request: BatchedRequest, error: ModynError) -> None:
        with self._changed:
            self._queue.discard(request)
        self._end(request, error)

    def _end(self, request: BatchedRequest, outcome: Outcome) -> None:
        try:
            del self._open[request]
        except KeyError:  # the request has ended: it was cancelled, or its deadline passed
            return
        request.done(outcome)

    def _work(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._predict(batch)
            batch.clear()  # the variable would keep the inputs in memory until the next batch
            self._end_batch()

    def _take(self, now: float) -> list[BatchedRequest]:
        """Return a due batch and count the batch as active. The list is empty if no batch is due, or if `threads` batches are active."""
        with self._lock:
            if self._active >= self._max_active:
                return []
            batch = self._queue.take(now)
            self._active += bool(batch)
            return batch

    def _end_batch(self) -> None:
        with self._lock:
            self._active -= 1
            if self._closing:
                self._changed.notify_all()

    def _next_batch(self) -> list[BatchedRequest] | None:
        """Wait for the next batch; None: the batcher is closed, and this thread ends."""
        with self._changed:
            while True:
                # One time for both: a batch that became due between two times would not be taken, and this thread would wait without a limit.
                now = self._clock()
                if batch := self._take(now):
                    return batch
                due_s = self._queue.due(now)
                # The last thread waits until no caller predicts, and then closes the predictor.
                if due_s is None and self._closing and (self._active == 0 or self._alive > 1):
                    self._alive -= 1
                    if self._alive == 0:
                        self._predictor.close()
                    return None
                # A request or `close` wakes this thread; otherwise the wait ends when a batch is due. Active threads take waiting requests without
                # being woken.
                self._changed.wait(due_s or None)

    def _predict(self, batch: list[BatchedRequest]) -> None:
        wanted = [request for request in batch if request in self._open]
        if not wanted:
            return
        started, processor = self._clock(), None if self._by_clock else time.thread_time()
        outcomes = self._outcomes(wanted)
        seconds = self._clock() - started
        self._measure(seconds, None if processor is None else time.thread_time() - processor)
        rows = sum([request.rows for request in wanted])
        for request, outcome in zip(wanted, outcomes, strict=True):
            self._end(request, outcome)
        self._report(BatchReport(len(wanted), rows, seconds, started - wanted[0].arrived))

    def _measure(self, seconds: float, processor_s: float | None) -> None:
        """Note the time of a batch. Reading the processor time takes system calls, and the processor time is at most the clock's time. Therefore the
        processor time is read only after a batch that was not quick.
        """
        took_s = seconds if processor_s is None else processor_s
        self._by_clock = took_s <= self.limits.inline_s
        if self._by_clock or processor_s is not None:
            self._batch_s = took_s if self._batch_s == math.inf else self._batch_s + _SMOOTHING * (took_s - self._batch_s)

    def _outcomes(self, batch: Sequence[BatchedRequest]) -> Sequence[Outcome]:
        try:
            return self._run(batch)
        except ModynError as error:
            failed = error
        except Exception as error:  # noqa: BLE001 - the user's model may raise any class, and each request must end
            get_logger("serving").warning("prediction_failed", version=str(self.name), exc_info=error)
            failed = UserCodeError(f"{self.name} failed: {type(error).__name__}: {error}; the log of the server has the details")
        return [failed] if len(batch) == 1 else [outcome for request in batch for outcome in self._outcomes([request])]

    def _run(self, batch: Sequence[BatchedRequest]) -> Sequence[Outcome]:
        if len(batch) == 1:
            outputs = self._predictor.predict(batch[0].inputs)
            self._check(outputs, batch[0].rows)
            return [outputs]
        joined = {name: np.concatenate([request.inputs[name] for request in batch]) for name in self._names}
        outputs = self._predictor.predict(joined)
        self._check(outputs, sum(request.rows for request in batch))
        found, start = [], 0
        for request in batch:
            found.append({name: values[start : start + request.rows] for name, values in outputs.items()})
            start += request.rows
        return found

    def _check(self, outputs: Tensors, rows: int) -> None:
        """Raise UserCodeError if an output is missing, or if an output of a batched model differs from the inputs in its number of rows."""
        for tensor in self._signature.outputs:
            if tensor.name not in outputs:
                raise UserCodeError(f"{self.name} returned no output '{tensor.name}', which its signature promises")
            shape = outputs[tensor.name].shape
            if self._signature.is_batched and (not shape or shape[0] != rows):
                raise UserCodeError(
                    f"{self.name} returned '{tensor.name}' of shape {list(shape)} for {rows} rows; each row needs its own"
                )
