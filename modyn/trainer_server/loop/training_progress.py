"""Progress of a training: batches, samples, and the steps of its optimizers, including skipped steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from modyn.dataset.batch import NO_WORK, NONE_CACHED, BadSample, Batch

LISTED_BAD_SAMPLES = 100
"""Largest number of bad samples that the result of a training lists."""


@dataclass(slots=True)
class TrainingProgress:
    """Progress of a training. `batches`: number of all batches. `batches_in_epoch`: number of batches of `epoch`. `steps`: number of steps of the
    optimizers. `samples`: number of samples seen.
    `skipped`: samples that were deleted after the selection, or left out by `data.on_bad_sample`. `bad_samples`: the first bad samples, by key.
    `cached`: number of samples from each tier of the cache. `cache_work`: work that was done only for the cache. `unchosen`: candidates that
    downsampling did not choose; `samples` does not include them.

    `skipped_steps`: number of steps that changed no weight, because no parameter had a gradient, or because a gradient was infinite under loss
    scaling. `has_gradient`: whether any gradient of the training was not 0. `schedule_steps`: number of advances of schedulers that step with the
    optimizers.
    `made_before_epoch`: steps that were made before this epoch.
    """

    epoch: int = 0
    batches_in_epoch: int = 0
    batches: int = 0
    samples: int = 0
    steps: int = 0
    skipped: int = 0
    bad_samples: dict[int, dict[str, Any]] = field(default_factory=dict)
    cached: dict[str, int] = field(default_factory=NONE_CACHED._asdict)
    cache_work: dict[str, int] = field(default_factory=NO_WORK._asdict)
    unchosen: int = 0
    skipped_steps: int = 0
    has_gradient: bool = False
    schedule_steps: int = 0
    made_before_epoch: int = 0

    @property
    def made_steps(self) -> int:
        """Number of steps that were made, as far as the host knows. Some skipped steps may be known only to the device."""
        return self.steps - self.skipped_steps

    def count(self, batch: Batch) -> None:
        """Add a batch."""
        self.batches += 1
        self.batches_in_epoch = batch.index + 1
        self.samples += len(batch)
        self.skipped += batch.num_skipped
        self.note_bad(batch.bad)
        if batch.cached is not NONE_CACHED:
            for tier, count in batch.cached._asdict().items():
                self.cached[tier] += count
        if batch.work is not NO_WORK:
            for what, count in batch.work._asdict().items():
                self.cache_work[what] += count

    def advances_schedule(self) -> bool:
        """Return whether schedulers that step with the optimizers advance after this step, and count the advance. Schedulers advance once for each
        step that was made.

        If only the device knows of a skipped step, schedulers advance anyway. Once the skip is known, schedulers pause for the same number of steps.
        """
        advances = self.schedule_steps < self.made_steps
        self.schedule_steps += advances
        return advances

    def end_epoch(self) -> None:
        """Begin the next epoch."""
        self.epoch += 1
        self.batches_in_epoch = 0
        self.made_before_epoch = self.made_steps

    def note_bad(self, samples: Iterable[BadSample]) -> None:
        """Record samples that could not be decoded, each once, at most `LISTED_BAD_SAMPLES`."""
        for sample in samples:
            if len(self.bad_samples) < LISTED_BAD_SAMPLES:
                self.bad_samples.setdefault(sample.key, asdict(sample))
