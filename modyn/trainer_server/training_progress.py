"""How far a training is: batches, samples, and the steps of its optimizers with those that were skipped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from modyn.dataset.batch import NO_WORK, NONE_CACHED, BadSample, Batch

LISTED_BAD_SAMPLES = 100
"""Samples that the result of a training lists."""


@dataclass(slots=True)
class TrainingProgress:
    """How far a training is: `batches` in all, of them `batches_in_epoch` in `epoch`; `steps` of the optimizers; `samples` seen;
    `skipped` samples that were deleted after the selection, or left out by `data.on_bad_sample`; of these the first `bad_samples`, by
    key; `cached`: how many came from each tier of the cache; `cache_work`: what was done for it only; `unchosen` candidates of batches, not
    among `samples`.

    Of the steps, `skipped_steps` changed no weight: no parameter had a gradient, or one was infinite under loss scaling. `has_gradient`: whether any
    gradient of the training was not 0. `schedule_steps`: how often schedulers that step with the optimizers have advanced. `made_before_epoch`: steps
    that were made before this epoch.
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
        """Steps that were made: as far as is known, where only the device knows which were."""
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
        """Whether schedulers that step with the optimizers advance after this step, which is counted then: as often as steps were made.

        Where only the device knows of a skipped step, they have advanced on it, and wait for as many steps once it is known.
        """
        advances = self.schedule_steps < self.made_steps
        self.schedule_steps += advances
        return advances

    def end_epoch(self) -> None:
        """Go to the next epoch."""
        self.epoch += 1
        self.batches_in_epoch = 0
        self.made_before_epoch = self.made_steps

    def note_bad(self, samples: Iterable[BadSample]) -> None:
        """Note samples that could not be decoded, each once, up to `LISTED_BAD_SAMPLES`."""
        for sample in samples:
            if len(self.bad_samples) < LISTED_BAD_SAMPLES:
                self.bad_samples.setdefault(sample.key, asdict(sample))

    def listed_bad_samples(self) -> dict[str, Any]:
        """The `bad_samples` of a result, which it has only where there are any."""
        return {"bad_samples": list(self.bad_samples.values())} if self.bad_samples else {}
