"""How many batches, steps and epochs a training has: arithmetic on the trigger set's size, known before the first sample is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from modyn.dataset.order.plan import num_batches, samples_per_epoch
from modyn.records import Int64Array


@dataclass(frozen=True)
class TrainingPlan:
    """A training over `num_keys` samples: either `epochs` passes, or as many as it takes to train on `max_samples`, and no sample more.

    The optimizers step after every `accumulation` batches and at the end of an epoch. All numbers but `num_keys` are of samples that are trained on:
    in batch-then-sample `num_chosen` of each pass, no more and no fewer, in batches of nearly one size, so that there is no last one to drop.
    """

    num_keys: int
    batch_size: int
    drop_last: bool = False
    epochs: int = 1
    max_samples: int | None = None
    accumulation: int = 1
    join_single: bool = False
    """Whether the last batch of a pass, where it would be a single sample, is part of the one before it."""
    num_chosen: int | None = None
    """Samples of a pass that are chosen, batch by batch; None: all are trained on."""

    @cached_property
    def loaded_per_batch(self) -> int:
        """Samples that are loaded for a batch, of which the last of a pass may have fewer.

        >>> [TrainingPlan(n, 64, num_chosen=n // 2).loaded_per_batch for n in (500, 1024, 100)]
        [125, 128, 100]
        """
        if self.num_chosen is None or not self.num_keys:
            return self.batch_size
        if self.join_single and self.batch_size == 2:
            # Each batch needs its two: an odd number, or what batches of one size leave, makes batches of three.
            return -(-self.num_keys // max(1, self.num_chosen // 2))
        num = -(-self.num_chosen // self.batch_size)
        even = -(-self.num_keys // num)
        # What is left for the last batch must be enough to choose from; where nearly all are chosen, it may not be, and there is one batch more.
        before = min((num - 1) * self.batch_size, self._rounded((num - 1) * even))
        left = self.num_keys - (num - 1) * even
        fits = self.batch_size == 1 or self.num_chosen - before <= left
        return even if fits else self.batch_size * self.num_keys // self.num_chosen

    def _rounded(self, num_loaded: int) -> int:
        """How many of `num_loaded` candidates are chosen: their share, rounded."""
        chosen, num_keys = self.num_chosen or 0, max(1, self.num_keys)
        return (2 * num_loaded * chosen + num_keys) // (2 * num_keys)

    @cached_property
    def _choices(self) -> tuple[Int64Array, Int64Array]:
        """Samples that are loaded, and those that are chosen of them, by the end of each batch of a pass in batch-then-sample."""
        size, num_keys, total = self.loaded_per_batch, self.num_keys, self.num_chosen or 0
        loaded = np.minimum(np.arange(1, -(-num_keys // size) + 1) * size, num_keys)
        if self.join_single and len(loaded) > 1 and num_keys % size == 1:
            loaded = np.delete(loaded, -2)
        batches = np.arange(1, len(loaded) + 1)
        least = 2 if self.join_single else 1  # BatchNorm needs two
        chosen = np.floor(loaded * (total / max(1, num_keys)) + 0.5).astype(np.int64)
        if self.batch_size > 1:
            most = 3 if self.join_single and self.batch_size == 2 else self.batch_size
            chosen = np.minimum(chosen, batches * most)
        chosen = np.minimum(chosen, total - least * (len(loaded) - batches))
        chosen[-1:] = total
        sizes = np.maximum(np.diff(chosen, prepend=0), np.minimum(least, np.diff(loaded, prepend=0)))
        return loaded, np.cumsum(sizes)

    def chosen_of(self, index: int, num_candidates: int) -> int:
        """Samples that batch `index` of a pass has, out of `num_candidates` that were loaded for it, fewer than planned where some were
        deleted: its share, rounded, but at least one, or two where a single one would be part of another batch.

        >>> plan = TrainingPlan(1000, 64, num_chosen=500)
        >>> [plan.chosen_of(i, 125) for i in range(4)], plan.chosen_of(0, 50), plan.chosen_of(0, 1)
        ([63, 62, 63, 62], 25, 1)
        """
        if self.num_chosen is None:
            return num_candidates
        loaded, chosen = (int(ends[index] - (ends[index - 1] if index else 0)) for ends in self._choices)
        if num_candidates == loaded:
            return chosen
        share = (2 * num_candidates * chosen + loaded) // (2 * loaded)
        return min(num_candidates, max(2 if self.join_single else 1, share))

    @cached_property
    def drops_last(self) -> bool:
        """Whether those that are loaded last in a pass are left out where they give no whole batch."""
        return self.drop_last and self.num_chosen is None

    @cached_property
    def batches_per_epoch(self) -> int:
        """Batches of one whole pass over the trigger set."""
        if self.num_chosen is not None:
            return len(self._choices[0])
        return self._batches_of(self.num_keys)

    @cached_property
    def samples_per_epoch(self) -> int:
        """Samples of one whole pass; with `drop_last`, without those of an incomplete last batch."""
        if self.num_chosen is not None:
            return int(self._choices[1][-1]) if self.num_keys else 0
        return samples_per_epoch(self.num_keys, self.batch_size, self.drop_last)

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
        cut = rest if self.num_chosen is not None else samples_per_epoch(rest, self.batch_size, self.drop_last)
        return passes * self.samples_per_epoch + cut

    @cached_property
    def num_batches(self) -> int:
        """Batches of the whole training. The last one is cut to the bound on samples, or left out with `drop_last`.

        >>> TrainingPlan(10, 4, max_samples=25).num_batches, TrainingPlan(10, 4, drop_last=True, max_samples=25).num_batches
        (8, 6)
        """
        passes, rest = self._passes
        return passes * self.batches_per_epoch + self._batches_of(rest)

    def _batches_of(self, num_samples: int) -> int:
        """Batches that the first `num_samples` samples of a pass make."""
        if self.num_chosen is not None:
            ends = self._choices[1][: np.searchsorted(self._choices[1], num_samples) + 1] if num_samples else self._choices[1][:0]
            joins = self.join_single and len(ends) > 1 and num_samples - ends[-2] == 1
            return len(ends) - int(joins)
        joins = self.join_single and num_samples > self.batch_size > 1 and num_samples % self.batch_size == 1
        return num_batches(num_samples, self.batch_size, self.drop_last) - int(joins and not self.drop_last)

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
