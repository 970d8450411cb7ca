"""A uniform sample of the whole stream so far."""

from __future__ import annotations

import numpy as np

from modyn.records import Int64Array
from modyn.selector.presampling.buffered import Before, Buffer, BufferConfig, BufferedPresampling, Draws, changes
from modyn.selector.window import SelectionContext


class ReservoirPresampling(BufferedPresampling):
    """Holds a uniform sample, without replacement, of all samples that the stream has brought (Vitter: Random Sampling with a Reservoir, 1985,
    algorithm R): sample number n takes the place of a random one with probability buffer_size / n.

    Samples that are deleted from the dataset leave room for as many later ones as there are deleted samples in all, by random pairing (Gemulla,
    Lehner and Haas: Maintaining Bounded-Size Sample Synopses of Evolving Datasets, 2008), so that the sample stays uniform.
    """

    Config = BufferConfig
    restarts = True

    def decider(self, buffer: Buffer, capacity: int, context: SelectionContext, before: Before) -> AlgorithmR:
        """Algorithm R, with the generator of the trigger."""
        lost, passed = before.values.get("holes", (0, 0))
        holes = lost + before.num_lost, passed + before.num_deleted - before.num_lost
        return AlgorithmR(
            capacity, context.generator(), len(buffer), before.values.get("num_seen", 0) - before.num_deleted, holes
        )

    def keeps(self, decider: AlgorithmR) -> tuple[dict[str, Int64Array], dict[str, object]]:
        """How many samples the stream has shown, and how many deletions are not made up for yet."""
        return {}, {"num_seen": decider.num_seen, "holes": decider.holes}


class AlgorithmR:
    """Decides for `ReservoirPresampling`. Needs no labels."""

    def __init__(
        self, capacity: int, generator: np.random.Generator, num_held: int = 0, num_seen: int = 0, holes: tuple[int, int] = (0, 0)
    ) -> None:
        """Args: num_held: samples in the buffer. num_seen: samples offered so far that exist. holes: deleted samples not made up for yet: those
        that were in the buffer, and the others."""
        self._capacity, self._generator, self._num_held = capacity, generator, num_held
        self.num_seen, self.holes = num_seen, holes

    def offer(self, labels: Int64Array) -> tuple[Int64Array, Int64Array]:
        """As `Decider.offer`."""
        slots, paired = self._make_up_for_deletions(len(labels))
        rows = np.arange(paired, len(labels))
        num_added = min(len(rows), self._capacity - self._num_held) if not sum(self.holes) else 0
        slots.update(zip(range(self._num_held, self._num_held + num_added), rows[:num_added].tolist(), strict=True))
        self._num_held += num_added
        self.num_seen += num_added
        rest = rows[num_added:]
        # Not by `integers`: what it draws for one number may depend on how many are asked for.
        drawn = (self._generator.random(len(rest)) * (self.num_seen + 1 + np.arange(len(rest)))).astype(np.int64)
        self.num_seen += len(rest)
        chosen = np.flatnonzero(drawn < self._capacity)
        slots.update(zip(drawn[chosen].tolist(), rest[chosen].tolist(), strict=True))
        return changes(slots)

    def _make_up_for_deletions(self, count: int) -> tuple[dict[int, int], int]:
        """Pair the first of `count` offers with deleted samples. Returns: the rows of those that enter, by slot, and how many were paired."""
        lost, passed = self.holes
        count = min(count, lost + passed)
        draws, slots = Draws(self._generator, 1), dict[int, int]()
        for row in range(count):
            if draws.below(lost + passed) < lost:
                slots[self._num_held] = row
                self._num_held, lost = self._num_held + 1, lost - 1
            else:
                passed -= 1
        self.num_seen += count
        self.holes = lost, passed
        return slots, count
