"""Which samples of a step come for the first time: what the prequential error tests, and what updates statistics. Imports torch: for workers only."""

from __future__ import annotations

import numpy as np
import torch

from modyn.config.online import OnlineConfig
from modyn.records import Int64Array
from modyn.trainer_server.online_steps import new_of_steps


class NewSamples:
    """The new samples of a trigger set of steps, each of which comes as a new one once; drawn ones do not count.

    Args: keys: of the trigger set, int64 (n,), in its order. places: those of its new samples among them, int64 (m,), ascending.
    """

    def __init__(self, keys: Int64Array, places: Int64Array) -> None:
        self._keys, self._places, self._new = keys, places, keys[places]
        self._order = np.argsort(self._new, kind="stable")
        self._seen = np.zeros(len(places), np.bool_)
        self._at = 0
        """The place in the trigger set behind what has come."""

    def first_seen(self, keys: Int64Array) -> Int64Array:
        """The rows of new samples that have not come before: int64, ascending. Args: keys: of the next batch, or of several in a row, int64 (n,)."""
        begin, end = self._at, self._at + len(keys)
        if np.array_equal(keys, self._keys[begin:end]):
            # As the trigger set has it, where nothing was deleted meanwhile or left out.
            first, last = np.searchsorted(self._places, (begin, end)).tolist()
            found, self._at = first + np.flatnonzero(~self._seen[first:last]), end
            self._seen[found] = True
            rows: Int64Array = self._places[found] - begin
            return rows
        if not len(self._new):
            return np.zeros(0, np.int64)
        at = np.minimum(np.searchsorted(self._new, keys, sorter=self._order), len(self._new) - 1)
        number = self._order[at]
        rows = np.flatnonzero((self._new[number] == keys) & ~self._seen[number])
        # Within a batch, a new sample may be drawn too: only where there is no history, and then it is the same sample.
        rows = rows[np.sort(np.unique(number[rows], return_index=True)[1])]
        self._seen[number[rows]] = True
        self._find_place()
        return rows

    def _find_place(self) -> None:
        """Go on at the new sample behind the last one that has come: a step begins with its new samples."""
        after = int(np.flatnonzero(self._seen).max(initial=-1)) + 1
        self._at = int(self._places[after]) if after < len(self._places) else len(self._keys)

    def state(self) -> torch.Tensor:
        """Which samples have come, bool (n,)."""
        return torch.from_numpy(self._seen.copy())

    def load_state(self, state: torch.Tensor) -> None:
        """Go on from what `state` returned."""
        self._seen = state.numpy().copy()
        self._find_place()


def new_samples(keys: Int64Array, online: OnlineConfig) -> NewSamples:
    """The new samples of a trigger set of steps, as they come in its batches. Args: keys: of the trigger set, in its order."""
    return NewSamples(keys, new_of_steps(np.arange(len(keys)), online))
