"""Find the samples that an online training sees for the first time. The prequential error and statistics use only these samples. Imports torch: for
workers only.
"""

from __future__ import annotations

import numpy as np
import torch

from modyn.config.online import OnlineConfig
from modyn.records import Int64Array
from modyn.trainer_server.request.step_config import new_of_steps


class NewSamples:
    """The new samples of an online trigger. A sample is new only at its first appearance. Samples drawn from the history are never new.

    Args: keys: keys of the trigger set, int64 (n,), in the order of the set. places: positions of the new samples in `keys`, int64 (m,), ascending.
    """

    def __init__(self, keys: Int64Array, places: Int64Array) -> None:
        self._keys, self._places, self._new = keys, places, keys[places]
        self._order = np.argsort(self._new, kind="stable")
        self._seen = np.zeros(len(places), np.bool_)
        self._at = 0
        """The position in the trigger set after the samples seen so far."""

    def first_seen(self, keys: Int64Array) -> Int64Array:
        """Return the rows of new samples at their first appearance: int64, ascending. Args: keys: keys of the next batch or batches, int64 (n,)."""
        begin, end = self._at, self._at + len(keys)
        if np.array_equal(keys, self._keys[begin:end]):
            # The keys equal the next keys of the trigger set, which means that no sample was deleted or left out.
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
        # Without a history, the draw for a batch may include one of its new samples. Two rows then have the same sample, and the first row counts.
        rows = rows[np.sort(np.unique(number[rows], return_index=True)[1])]
        self._seen[number[rows]] = True
        self._find_place()
        return rows

    def _find_place(self) -> None:
        """Continue at the new sample after the last new sample that was seen. Each step begins with its new samples."""
        after = int(np.flatnonzero(self._seen).max(initial=-1)) + 1
        self._at = int(self._places[after]) if after < len(self._places) else len(self._keys)

    def state(self) -> torch.Tensor:
        """Return which new samples were seen, bool (n,)."""
        return torch.from_numpy(self._seen.copy())

    def load_state(self, state: torch.Tensor) -> None:
        """Resume from a result of `state`."""
        self._seen = state.numpy().copy()
        self._find_place()


def new_samples(keys: Int64Array, online: OnlineConfig) -> NewSamples:
    """Return the new samples of an online trigger. Args: keys: keys of the trigger set, in the order of the set."""
    return NewSamples(keys, new_of_steps(np.arange(len(keys)), online))
