"""A uniform sample of the whole stream so far."""

from __future__ import annotations

import numpy as np

from modyn.records import Int64Array
from modyn.selector.presampling.buffered import Before, Buffer, BufferConfig, BufferedPresampling, Draws, changes
from modyn.selector.window import SelectionContext


class ReservoirPresampling(BufferedPresampling):
    """Holds a uniform sample, without replacement, of all samples of the stream so far (Vitter: Random Sampling with a Reservoir, 1985, algorithm R).
    Sample number n replaces a random held sample with probability buffer_size / n.

    After deletions from the dataset, the same number of later samples replace the deleted samples by random pairing (Gemulla, Lehner and Haas:
    Maintaining Bounded-Size Sample Synopses of Evolving Datasets, 2008). The sample stays uniform.

    >>> from modyn.testing.fake_selector import example_presampling as presample
    >>> presample({"strategy": "Reservoir", "buffer_size": 3}, [0] * 5, [0] * 5)
    [[0, 3, 4], [3, 4, 9]]
    """

    Config = BufferConfig
    restarts = True

    def decider(self, buffer: Buffer, capacity: int, context: SelectionContext, before: Before) -> AlgorithmR:
        """Make algorithm R with the generator of the trigger."""
        lost, passed = before.values.get("holes", (0, 0))
        holes = lost + before.num_lost, passed + before.num_deleted - before.num_lost
        return AlgorithmR(
            capacity, context.generator(), len(buffer), before.values.get("num_seen", 0) - before.num_deleted, holes
        )

    def keeps(self, decider: AlgorithmR) -> tuple[dict[str, Int64Array], dict[str, object]]:
        """Return the number of offered samples, and the numbers of deletions that no later sample has replaced yet."""
        return {}, {"num_seen": decider.num_seen, "holes": decider.holes}


class AlgorithmR:
    """Decides for `ReservoirPresampling`. Needs no labels."""

    def __init__(
        self, capacity: int, generator: np.random.Generator, num_held: int = 0, num_seen: int = 0, holes: tuple[int, int] = (0, 0)
    ) -> None:
        """Args: num_held: number of samples in the buffer. num_seen: number of offered samples that still exist. holes: number of samples that were
        deleted from the buffer, and number of other deleted samples; deletions that a later sample has replaced do not count.
        """
        self._capacity, self._generator, self._num_held = capacity, generator, num_held
        self.num_seen, self.holes = num_seen, holes

    def offer(self, labels: Int64Array) -> tuple[Int64Array, Int64Array]:
        """See `Decider.offer`."""
        slots, paired = self._make_up_for_deletions(len(labels))
        rows = np.arange(paired, len(labels))
        num_added = min(len(rows), self._capacity - self._num_held) if not sum(self.holes) else 0
        slots.update(zip(range(self._num_held, self._num_held + num_added), rows[:num_added].tolist(), strict=True))
        self._num_held += num_added
        self.num_seen += num_added
        rest = rows[num_added:]
        # `integers` is not used, because its numbers may depend on the number of draws in a call. The split into chunks must not change the result.
        drawn = (self._generator.random(len(rest)) * (self.num_seen + 1 + np.arange(len(rest)))).astype(np.int64)
        self.num_seen += len(rest)
        chosen = np.flatnonzero(drawn < self._capacity)
        slots.update(zip(drawn[chosen].tolist(), rest[chosen].tolist(), strict=True))
        return changes(slots)

    def _make_up_for_deletions(self, count: int) -> tuple[dict[int, int], int]:
        """Pair as many of the next `count` offered samples as possible with deleted samples. Returns: the rows that enter, by slot, and the number of
        pairs."""
        lost, passed = self.holes
        count = min(count, lost + passed)
        # The block size is 1, because unused numbers that were drawn in advance would change the draws of `offer`.
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
