"""Draws from a bounded uniform sample of the stream."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
from pydantic import Field

from modyn.config.base import Section
from modyn.records import Int64Array
from modyn.selector.history import DueSteps, HistoryPolicy
from modyn.selector.window import BLOCK, SelectionContext, SelectionWindow

UInt64Array = npt.NDArray[np.uint64]


class ReservoirOptions(Section):
    """Options of Reservoir."""

    num_samples: int = Field(ge=1, description="number of samples that are held", examples=[10_000])


class ReservoirHistory(HistoryPolicy):
    """Holds a uniform sample, without replacement, of all samples of the stream so far. Each step draws from the held samples, uniformly and without
    replacement.

    Each position of the stream has a random rank from the run's seed. The policy holds the `num_samples` samples with the lowest ranks (bottom-k
    sampling, equivalent to Vitter: Random Sampling with a Reservoir, 1985). The held samples change slowly, so that a cache can keep their payloads.
    If a held sample is deleted, the sample with the next rank replaces it. No state is kept between triggers: each trigger ranks the whole stream,
    which takes a few nanoseconds for each sample.

    >>> from modyn.testing.fake_selector import example_history
    >>> example_history({"strategy": "Reservoir", "num_samples": 3})
    [6, 7, 2, 3, 8, 9, 2, 3]
    """

    Config = ReservoirOptions
    config: ReservoirOptions

    def draw(self, window: SelectionWindow, steps: DueSteps, size: int, context: SelectionContext) -> Int64Array:
        """Draw samples; see `HistoryPolicy.draw`."""
        # Samples before the first step are added in blocks, and later samples step by step. Only one block and the held samples are in memory.
        bounds = [0, *range(BLOCK, int(steps.begins[0]), BLOCK), *steps.begins[:-1].tolist()]
        generator, begins = context.generator(), set(steps.begins[:-1].tolist())
        held, ranks, drawn = np.zeros(0, np.int64), np.zeros(0, np.uint64), list[Int64Array]()
        for start, end in pairwise(bounds):
            held = np.append(held, np.arange(start, end))
            ranks = np.append(ranks, ranks_of(window.reader.positions(window.start + start, window.start + end), context.seed))
            # Samples that are dropped here could not be held later, because ranks never change.
            if len(ranks) > self.config.num_samples:
                lowest = np.sort(np.argpartition(ranks, self.config.num_samples)[: self.config.num_samples])
                held, ranks = held[lowest], ranks[lowest]
            if end in begins:
                chosen = generator.choice(len(held), size, replace=len(held) < size, shuffle=False)
                drawn.append(np.sort(held[chosen]))
        return np.array(drawn, np.int64).reshape(-1, size)


def ranks_of(positions: Int64Array, seed: int) -> UInt64Array:
    """Return a random rank for each position, uint64 (n,), fixed for a seed (the finalizer of SplitMix64: Steele, Lea and Flood, 2014)."""
    start = np.uint64(np.random.SeedSequence(seed % 2**64).generate_state(1, np.uint64)[0])
    mixed = positions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + start
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
