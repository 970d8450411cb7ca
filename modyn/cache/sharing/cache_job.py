"""The order of one training at a shared cache: the samples that its epoch must still serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from modyn.errors import InvalidArgumentError
from modyn.records import BoolArray, Int64Array

_VERSION: Final = 1
_ORDER, _BATCHES = 1, 2
"""Purposes of random generators. The purpose is part of the seed, so that no two generators have the same sequence."""


class CacheJob:
    """A training at the cache, and its progress in the epoch.

    Args: place: the training's number at the cache. trigger_set: numbers of the samples that the training uses, ascending.
    """

    def __init__(self, place: int, trigger_set: Int64Array, num_samples: int, seed: int) -> None:
        self.place, self.trigger_set, self.seed = place, trigger_set, seed
        self.hand = 0
        """Slot at which the next search for values starts."""
        self.seen = np.ones(num_samples, np.bool_)
        """(num_samples,), whether the epoch has served the sample, or the training does not use the sample."""
        self.begin_epoch(0)

    def begin_epoch(self, epoch: int, seen: BoolArray | None = None) -> None:
        """Begin an epoch, with its own random order. Args: seen: whether the epoch has already served each sample of the trigger set; None: the epoch
        has served no sample."""
        self.epoch = epoch
        self.seen[self.trigger_set] = False if seen is None else seen
        self.num_left = len(self.trigger_set) if seen is None else int(np.count_nonzero(~seen))
        # `num_left` is part of the seed, so that a resumed epoch does not repeat the random numbers of its first batches.
        self.generator = np.random.default_rng([self.seed, epoch, self.num_left, _BATCHES])
        self._ahead = np.random.default_rng([self.seed, epoch, _ORDER]).permutation(self.trigger_set)
        self._start = 0

    def ahead(self, count: int) -> Int64Array:
        """Return the first `count` samples of the order that this epoch must still serve, (n,). If there are fewer, return all of them."""
        width = count
        while True:
            window = self._ahead[self._start : self._start + width]
            unseen = np.flatnonzero(~self.seen[window])
            if len(unseen) >= count or self._start + width >= len(self._ahead):
                break
            width *= 2
        if width > 4 * count:
            # Remove the served samples, which are the majority here, so that the next windows are short again.
            self._ahead, self._start = self._ahead[self._start :], 0
            self._ahead = self._ahead[~self.seen[self._ahead]]
        elif len(unseen):
            self._start += int(unseen[0])
        return window[unseen[:count]]

    def mark(self, samples: Int64Array) -> None:
        """Record that a batch served these samples."""
        self.seen[samples] = True
        self.num_left -= len(samples)

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint. `seen` has a bit for each sample of the trigger set, uint8 (n / 8, rounded up)."""
        seen = np.packbits(self.seen[self.trigger_set])
        return {"version": _VERSION, "seed": self.seed, "num_samples": len(self.trigger_set), "epoch": self.epoch, "seen": seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a result of `state_dict`. Raises InvalidArgumentError: the state has another version or belongs to another job."""
        expected = {"version": _VERSION, "seed": self.seed, "num_samples": len(self.trigger_set)}
        found = {name: state.get(name) for name in expected}
        bits = np.asarray(state.get("seen", ()), np.uint8)
        if found != expected or "epoch" not in state or bits.shape != (-(-len(self.trigger_set) // 8),):
            raise InvalidArgumentError(
                f"the order of a job with {expected} cannot resume from a state with {found} and {bits.size} bytes of seen samples: "
                "resume it with its own checkpoint, or start it again"
            )
        self.begin_epoch(int(state["epoch"]), np.unpackbits(bits, count=len(self.trigger_set)).astype(np.bool_))
