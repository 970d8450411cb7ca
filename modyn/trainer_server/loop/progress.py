"""Progress messages of a training to the trainer server. Imports torch: for workers only."""

from __future__ import annotations

from time import perf_counter

from modyn.trainer_server.loop.loop import Hook, Training, stopped
from modyn.trainer_server.request.records import BatchProgress
from modyn.workers import JobConnection


class ProgressReports(Hook):
    """Sends progress every `interval_s` seconds, and ends the training on the service's request to stop.

    The loss is read only when a message is sent, because the read waits for the device.

    Args: between_steps: end the training between two steps, where a checkpoint can be written; otherwise immediately.
    """

    def __init__(self, connection: JobConnection, interval_s: float, *, between_steps: bool) -> None:
        self._connection = connection
        self._between_steps = between_steps
        self._interval_s = interval_s
        self._last = 0.0
        self._last_samples = 0

    def on_begin(self, training: Training) -> None:
        """Send the progress from the checkpoint (0 without a checkpoint), and start the clock."""
        self._last, self._last_samples = perf_counter(), training.progress.samples
        self._send(training, 0.0)

    def on_batch(self, training: Training) -> None:
        """Send progress if `interval_s` seconds have passed since the last message. Raises CancelledError on a request to stop."""
        if self._connection.stopping:
            # Without checkpoints, nothing can be saved, and the training ends immediately.
            if not self._between_steps:
                raise stopped()
            training.stopping = True
        now = perf_counter()
        if now - self._last >= self._interval_s:
            self._send(training, (training.progress.samples - self._last_samples) / (now - self._last))
            self._last, self._last_samples = now, training.progress.samples

    def _send(self, training: Training, samples_per_s: float) -> None:
        self._connection.send(
            BatchProgress(
                samples_seen=training.progress.samples,
                samples_total=training.plan.num_samples,
                batches_seen=training.progress.batches,
                loss=None if training.loss is None else float(training.loss),
                samples_per_s=samples_per_s,
                num_cached=dict(training.progress.cached),
                cache_work=dict(training.progress.cache_work),
                samples_loaded=training.progress.samples + training.progress.unchosen,
            )
        )
