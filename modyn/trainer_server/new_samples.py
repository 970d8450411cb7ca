"""Which samples of a step come for the first time: what the prequential error tests, and what updates statistics. Imports torch: for workers only."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import torch

from modyn.config.online import OnlineConfig
from modyn.records import Int64Array
from modyn.trainer_server.inputs import TrainingInputs
from modyn.trainer_server.online_steps import new_of_steps


class NewSamples:
    """The new samples of a trigger set of steps, each of which comes as a new one once; drawn ones do not count.

    Args: new: their keys, in the order of the stream. step_samples: of them in a step.
    """

    def __init__(self, new: Int64Array, step_samples: int) -> None:
        self._new, self._step_samples = new, step_samples
        self._order = np.argsort(new, kind="stable")
        self._seen = np.zeros(len(new), np.bool_)
        self._next = 0
        """The place in `new` behind the last one that was seen."""

    def first_seen(self, keys: Int64Array) -> Int64Array:
        """The rows of new samples that have not come before: int64, ascending. Args: keys: of the next batch, int64 (n,)."""
        end = min(self._next + self._step_samples, len(self._new))
        count = end - self._next
        # A last sample may be joined to the batch before: then it stands right behind it.
        is_joined = end < len(self._new) and len(keys) > count and keys[count] == self._new[end]
        if count and len(keys) >= count and not is_joined and np.array_equal(keys[:count], self._new[self._next : end]):
            # As the trigger set has it, where nothing was deleted meanwhile or left out.
            self._seen[self._next : end], self._next = True, end
            return np.arange(count)
        if not len(self._new):
            return np.zeros(0, np.int64)
        at = np.minimum(np.searchsorted(self._new, keys, sorter=self._order), len(self._new) - 1)
        place = self._order[at]
        rows = np.flatnonzero((self._new[place] == keys) & ~self._seen[place])
        # Within a batch, a new sample may be drawn too: only where there is no history, and then it is the same sample.
        rows = rows[np.sort(np.unique(place[rows], return_index=True)[1])]
        self._seen[place[rows]] = True
        self._next = max(self._next, int(place[rows].max(initial=-1)) + 1)
        return rows

    def state(self) -> torch.Tensor:
        """Which samples have come, bool (n,)."""
        return torch.from_numpy(self._seen.copy())

    def load_state(self, state: torch.Tensor) -> None:
        """Go on from what `state` returned."""
        self._seen = state.numpy().copy()
        self._next = int(np.flatnonzero(self._seen).max(initial=-1)) + 1


def keys_of_steps(inputs: TrainingInputs) -> Int64Array:
    """The keys of a trigger set of steps, in its order: int64 (n,). Raises: ConflictError: the selector has another trigger set by now."""
    trigger_set = inputs.trigger_set
    run_id, number, checksum = trigger_set.run_id, trigger_set.trigger_id, trigger_set.keys_checksum
    with closing(inputs.context.connect()) as clients:
        parts = [clients.selector.keys(run_id, number, p, keys_checksum=checksum).keys for p in range(trigger_set.num_partitions)]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def new_samples(keys: Int64Array, online: OnlineConfig) -> NewSamples:
    """The new samples of a trigger set of steps, as they come in its batches. Args: keys: of `keys_of_steps`."""
    return NewSamples(new_of_steps(keys, online), online.update_samples or online.step_samples)
