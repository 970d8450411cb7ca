"""Compute the number of batches, steps and epochs of a training from the size of its trigger set, before the first sample is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from modyn.dataset.order.batch_plan import num_batches, samples_per_epoch
from modyn.records import Int64Array


@dataclass(frozen=True)
class TrainingPlan:
    """A training over `num_keys` samples: either `epochs` passes, or the passes that are needed to train on exactly `max_samples` samples.

    The optimizers step after every `accumulation` batches and at the end of an epoch. All numbers except `num_keys` count samples that are trained
    on. In batch-then-sample, a pass trains on exactly `num_chosen` samples, in batches of nearly equal size, and drops no last batch.
    """

    num_keys: int
    batch_size: int
    drop_last: bool = False
    epochs: int = 1
    max_samples: int | None = None
    accumulation: int = 1
    join_single: bool = False
    """Whether to join a single sample in the last batch of a pass to the previous batch."""
    num_chosen: int | None = None
    """Number of samples that downsampling chooses in a pass, batch by batch. None if all samples are trained on."""

    @cached_property
    def loaded_per_batch(self) -> int:
        """Number of samples to load for a batch; the last batch of a pass may have fewer.

        >>> [TrainingPlan(n, 64, num_chosen=n // 2).loaded_per_batch for n in (500, 1024, 100)]
        [125, 128, 100]
        """
        if self.num_chosen is None or not self.num_keys:
            return self.batch_size
        if self.join_single and self.batch_size == 2:
            # Each batch needs at least two samples. If the number of samples is odd, or batches of equal size leave a remainder, some batches have
            # three samples.
            return -(-self.num_keys // max(1, self.num_chosen // 2))
        num = -(-self.num_chosen // self.batch_size)
        even = -(-self.num_keys // num)
        # The last batch must have enough candidates. If nearly all samples are chosen, one more batch may be needed for this reason.
        before = min((num - 1) * self.batch_size, self._rounded((num - 1) * even))
        left = self.num_keys - (num - 1) * even
        fits = self.batch_size == 1 or self.num_chosen - before <= left
        return even if fits else self.batch_size * self.num_keys // self.num_chosen

    def _rounded(self, num_loaded: int) -> int:
        """Return the number of samples to choose from `num_loaded` candidates: the share of chosen samples, rounded."""
        chosen, num_keys = self.num_chosen or 0, max(1, self.num_keys)
        return (2 * num_loaded * chosen + num_keys) // (2 * num_keys)

    @cached_property
    def _choices(self) -> tuple[Int64Array, Int64Array]:
        """Return the numbers of loaded and of chosen samples up to the end of each batch, for a pass in batch-then-sample."""
        size, num_keys, total = self.loaded_per_batch, self.num_keys, self.num_chosen or 0
        loaded = np.minimum(np.arange(1, -(-num_keys // size) + 1) * size, num_keys)
        if self.join_single and len(loaded) > 1 and num_keys % size == 1:
            loaded = np.delete(loaded, -2)
        batches = np.arange(1, len(loaded) + 1)
        least = 2 if self.join_single else 1  # BatchNorm needs two
        # The running totals are rounded, not the numbers of each batch, so that rounding errors do not add up.
        chosen = np.floor(loaded * (total / max(1, num_keys)) + 0.5).astype(np.int64)
        if self.batch_size > 1:
            most = 3 if self.join_single and self.batch_size == 2 else self.batch_size
            chosen = np.minimum(chosen, batches * most)
        # Leave at least `least` samples for each later batch.
        chosen = np.minimum(chosen, total - least * (len(loaded) - batches))
        chosen[-1:] = total
        sizes = np.maximum(np.diff(chosen, prepend=0), np.minimum(least, np.diff(loaded, prepend=0)))
        return loaded, np.cumsum(sizes)

    def chosen_of(self, index: int, num_candidates: int) -> int:
        """Return the number of samples to choose for batch `index` of a pass from `num_candidates` loaded samples.

        If deletions have left fewer candidates than planned, the number is the rounded share of the remaining candidates. The number is at least one,
        or two if a single sample would be joined to another batch.

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
        """Whether a pass leaves out its last samples if they do not fill a batch."""
        return self.drop_last and self.num_chosen is None

    @cached_property
    def batches_per_epoch(self) -> int:
        """Number of batches in one whole pass over the trigger set."""
        if self.num_chosen is not None:
            return len(self._choices[0])
        return self._batches_of(self.num_keys)

    @cached_property
    def samples_per_epoch(self) -> int:
        """Number of samples in one whole pass; with `drop_last`, without the samples of an incomplete last batch."""
        if self.num_chosen is not None:
            return int(self._choices[1][-1]) if self.num_keys else 0
        return samples_per_epoch(self.num_keys, self.batch_size, self.drop_last)

    @cached_property
    def num_epochs(self) -> int:
        """Number of epochs, including an incomplete last epoch; 0 if the training has no batch."""
        return -(-self.num_batches // self.batches_per_epoch) if self.num_batches else 0

    @cached_property
    def _passes(self) -> tuple[int, int]:
        """Number of whole passes over the trigger set, and number of samples in a further incomplete pass."""
        if self.max_samples is None or not self.samples_per_epoch:
            return self.epochs, 0
        passes, rest = divmod(self.max_samples, self.samples_per_epoch)
        # A last pass of one sample is left out, because it has no batch to which the sample could be joined.
        return passes, 0 if self.join_single and rest == 1 and passes else rest

    @cached_property
    def num_samples(self) -> int:
        """Number of samples that the training sees; a sample that is seen again counts again.

        >>> TrainingPlan(10, 4, drop_last=True, epochs=3).num_samples, TrainingPlan(10, 4, max_samples=25).num_samples
        (24, 25)
        """
        passes, rest = self._passes
        cut = rest if self.num_chosen is not None else samples_per_epoch(rest, self.batch_size, self.drop_last)
        return passes * self.samples_per_epoch + cut

    @cached_property
    def num_batches(self) -> int:
        """Number of batches in the whole training. The last batch is cut to the limit on samples, or left out with `drop_last`.

        >>> TrainingPlan(10, 4, max_samples=25).num_batches, TrainingPlan(10, 4, drop_last=True, max_samples=25).num_batches
        (8, 6)
        """
        passes, rest = self._passes
        return passes * self.batches_per_epoch + self._batches_of(rest)

    def _batches_of(self, num_samples: int) -> int:
        """Return the number of batches for the first `num_samples` samples of a pass."""
        if self.num_chosen is not None:
            ends = self._choices[1][: np.searchsorted(self._choices[1], num_samples) + 1] if num_samples else self._choices[1][:0]
            joins = self.join_single and len(ends) > 1 and num_samples - ends[-2] == 1
            return len(ends) - int(joins)
        # A last batch of one sample joins the batch before it, because BatchNorm needs two samples.
        joins = self.join_single and num_samples > self.batch_size > 1 and num_samples % self.batch_size == 1
        return num_batches(num_samples, self.batch_size, self.drop_last) - int(joins and not self.drop_last)

    @cached_property
    def num_steps(self) -> int:
        """Number of steps of each optimizer, and of a scheduler that steps every batch."""
        if not self.num_batches:
            return 0
        whole, rest = divmod(self.num_batches, self.batches_per_epoch)
        return whole * -(-self.batches_per_epoch // self.accumulation) + -(-rest // self.accumulation)

    def batches_in(self, epoch: int) -> int:
        """Return the number of batches in one epoch. The last epoch has fewer batches if the limit on samples ends the epoch."""
        return max(0, min(self.batches_per_epoch, self.num_batches - epoch * self.batches_per_epoch))

    def ends_epoch(self, epoch: int, index: int) -> bool:
        """Return whether batch `index` is the last batch of this epoch."""
        return index + 1 >= self.batches_in(epoch)

    def steps_after(self, epoch: int, index: int) -> bool:
        """Return whether the optimizers step after batch `index`, from 0, of `epoch`."""
        return (index + 1) % self.accumulation == 0 or self.ends_epoch(epoch, index)

    def steps_between(self, last: int, index: int) -> bool:
        """Return whether the optimizers step between batch `last` and batch `index` of an epoch, if the batches in between are empty."""
        return last // self.accumulation != index // self.accumulation

    def group_size(self, epoch: int, index: int) -> int:
        """Return the number of batches whose gradients are averaged with batch `index` of `epoch`; at least 1."""
        first = index - index % self.accumulation
        return max(1, min(self.accumulation, self.batches_in(epoch) - first))
