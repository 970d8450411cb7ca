"""A bounded part of the history, uniform over the stream."""

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

    num_samples: int = Field(ge=1, description="samples that are held", examples=[10_000])


class ReservoirHistory(HistoryPolicy):
    """Holds a uniform sample, without replacement, of all that the stream has brought, and draws each step's samples from what is held, uniformly
    and without replacement.

    Held are the `num_samples` samples of lowest rank; ranks are random, one for each position of the stream, by the run's seed (bottom-k sampling,
    which gives what Vitter's reservoirs give: Random Sampling with a Reservoir, 1985). So what is held changes slowly,
    payloads are read from a part of the dataset that a cache can keep, and a sample that is deleted leaves its place to the one of the next rank.
    Nothing is kept between triggers: each ranks the whole stream, some nanoseconds a sample.
    """

    Config = ReservoirOptions
    config: ReservoirOptions

    def draw(self, window: SelectionWindow, steps: DueSteps, size: int, context: SelectionContext) -> Int64Array:
        """As the base says."""
        bounds = [0, *range(BLOCK, int(steps.begins[0]), BLOCK), *steps.begins[:-1].tolist()]
        generator, begins = context.generator(), set(steps.begins[:-1].tolist())
        held, ranks, drawn = np.zeros(0, np.int64), np.zeros(0, np.uint64), list[Int64Array]()
        for start, end in pairwise(bounds):
            held = np.append(held, np.arange(start, end))
            ranks = np.append(ranks, ranks_of(window.reader.positions(window.start + start, window.start + end), context.seed))
            if len(ranks) > self.config.num_samples:
                lowest = np.sort(np.argpartition(ranks, self.config.num_samples)[: self.config.num_samples])
                held, ranks = held[lowest], ranks[lowest]
            if end in begins:
                chosen = generator.choice(len(held), size, replace=len(held) < size, shuffle=False)
                drawn.append(np.sort(held[chosen]))
        return np.array(drawn, np.int64).reshape(-1, size)


def ranks_of(positions: Int64Array, seed: int) -> UInt64Array:
    """A random rank for each position, uint64 (n,), always the same for a seed (the finalizer of SplitMix64: Steele, Lea and Flood, 2014)."""
    start = np.uint64(np.random.SeedSequence(seed % 2**64).generate_state(1, np.uint64)[0])
    mixed = positions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + start
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
