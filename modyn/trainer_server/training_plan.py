"""How many batches, steps and epochs a training has: arithmetic on the trigger set's size, known before the first sample is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from modyn.dataset.order.plan import num_batches, samples_per_epoch


@dataclass(frozen=True)
class TrainingPlan:
    """A training over `num_keys` samples: either `epochs` passes, or as many as it takes to train on `max_samples`, and no sample more.

    The optimizers step after every `accumulation` batches and at the end of an epoch. All numbers but `num_keys` are of samples that are trained
    on: in batch-then-sample, each batch is chosen out of `candidates` samples, and the last of a pass out of fewer.
    """

    num_keys: int
    batch_size: int
    drop_last: bool = False
    epochs: int = 1
    max_samples: int | None = None
    accumulation: int = 1
    join_single: bool = False
    """Whether the last batch of a pass, where it would be a single sample, is part of the one before it."""
    candidates: int | None = None
    """Samples out of which a batch is chosen; None: all are trained on."""

    @property
    def loaded_per_batch(self) -> int:
        """Samples that are loaded for a whole batch."""
        return self.batch_size if self.candidates is None else self.candidates

    def num_chosen(self, num_candidates: int) -> int:
        """Samples that a batch has, out of so many that were loaded for it: its share, rounded, but at least one, or two where a single one
        would be part of another batch.

        >>> [TrainingPlan(1000, 64, candidates=128).num_chosen(n) for n in (128, 101, 1, 0)]
        [64, 51, 1, 0]
        """
        if self.candidates is None:
            return num_candidates
        return min(num_candidates, max(2 if self.join_single else 1, self._share_of(num_candidates)))

    def _share_of(self, num_candidates: int) -> int:
        """The share of so many candidates that is trained on, rounded."""
        size = self.loaded_per_batch
        return (2 * num_candidates * self.batch_size + size) // (2 * size)

    @cached_property
    def drops_last(self) -> bool:
        """Whether those that are loaded last in a pass are left out: with `drop_last`, where they give no whole batch.

        >>> [TrainingPlan(n, 64, drop_last=True, candidates=640).drops_last for n in (1000, 1274, 1275, 1279)]
        [True, True, False, False]
        """
        return self.drop_last and self._share_of(self.num_keys % self.loaded_per_batch) < self.batch_size

    @cached_property
    def batches_per_epoch(self) -> int:
        """Batches of one whole pass over the trigger set."""
        return self._batches_of(self.num_keys, self.loaded_per_batch, self.drops_last)

    @cached_property
    def samples_per_epoch(self) -> int:
        """Samples of one whole pass; with `drop_last`, without those of an incomplete last batch."""
        if self.candidates is None:
            return samples_per_epoch(self.num_keys, self.batch_size, self.drop_last)
        if not self.batches_per_epoch:
            return 0
        last = self.candidates if self.drops_last else self.num_keys - (self.batches_per_epoch - 1) * self.candidates
        return (self.batches_per_epoch - 1) * self.batch_size + self.num_chosen(last)

    @cached_property
    def num_epochs(self) -> int:
        """Epochs, the last perhaps not to its end; 0 if there is no batch at all."""
        return -(-self.num_batches // self.batches_per_epoch) if self.num_batches else 0

    @cached_property
    def _passes(self) -> tuple[int, int]:
        """Whole passes over the trigger set, and the samples of one more that is cut short."""
        if self.max_samples is None or not self.samples_per_epoch:
            return self.epochs, 0
        passes, rest = divmod(self.max_samples, self.samples_per_epoch)
        # A last pass of one sample has no batch that it could be part of.
        return passes, 0 if self.join_single and rest == 1 and passes else rest

    @cached_property
    def num_samples(self) -> int:
        """Samples that the training sees, each as often as it is seen.

        >>> TrainingPlan(10, 4, drop_last=True, epochs=3).num_samples, TrainingPlan(10, 4, max_samples=25).num_samples
        (24, 25)
        """
        passes, rest = self._passes
        return passes * self.samples_per_epoch + samples_per_epoch(rest, self.batch_size, self.drop_last)

    @cached_property
    def num_batches(self) -> int:
        """Batches of the whole training. The last one is cut to the bound on samples, or left out with `drop_last`.

        >>> TrainingPlan(10, 4, max_samples=25).num_batches, TrainingPlan(10, 4, drop_last=True, max_samples=25).num_batches
        (8, 6)
        """
        passes, rest = self._passes
        return passes * self.batches_per_epoch + self._batches_of(rest, self.batch_size, self.drop_last)

    def _batches_of(self, num_samples: int, size: int, drop_last: bool) -> int:
        """Batches of `size` that so many samples make."""
        joins = self.join_single and num_samples > size > 1 and num_samples % size == 1
        return num_batches(num_samples, size, drop_last) - int(joins and not drop_last)

    @cached_property
    def num_steps(self) -> int:
        """Steps of each optimizer: what a scheduler that steps every batch counts."""
        if not self.num_batches:
            return 0
        whole, rest = divmod(self.num_batches, self.batches_per_epoch)
        return whole * -(-self.batches_per_epoch // self.accumulation) + -(-rest // self.accumulation)

    def batches_in(self, epoch: int) -> int:
        """Batches of one epoch: fewer in the last one if the bound on samples ends it."""
        return max(0, min(self.batches_per_epoch, self.num_batches - epoch * self.batches_per_epoch))

    def ends_epoch(self, epoch: int, index: int) -> bool:
        """Whether batch `index` is the last one of this epoch."""
        return index + 1 >= self.batches_in(epoch)

    def steps_after(self, epoch: int, index: int) -> bool:
        """Whether the optimizers step after batch `index`, from 0, of `epoch`."""
        return (index + 1) % self.accumulation == 0 or self.ends_epoch(epoch, index)

    def steps_between(self, last: int, index: int) -> bool:
        """Whether the optimizers step between batch `last` and batch `index` of an epoch, of which those in between hold nothing."""
        return last // self.accumulation != index // self.accumulation

    def group_size(self, epoch: int, index: int) -> int:
        """Number of batches whose gradients are averaged with those of batch `index` of `epoch`; at least 1."""
        first = index - index % self.accumulation
        return max(1, min(self.accumulation, self.batches_in(epoch) - first))
