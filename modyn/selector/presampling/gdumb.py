"""A greedily balanced sample of all classes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from modyn.config.selection_parts import GDUMB_FULL
from modyn.records import Int64Array
from modyn.selector.presampling import PresamplingConfig
from modyn.selector.presampling.buffered import (
    Before,
    Buffer,
    BufferConfig,
    BufferedPresampling,
    Draws,
    changes,
    members_by_class,
    refuse_too_many_classes,
)
from modyn.selector.window import SelectionContext


class GDumbPresampling(BufferedPresampling):
    """Accepts a sample while its class has less than an equal share of the buffer. In a full buffer the accepted sample replaces a random sample of
    the largest class (Prabhu, Torr and Dokania: GDumb: A Simple Approach that Questions Our Progress in Continual Learning, 2020, algorithm 1).

    The share is buffer_size divided by the number of classes so far, not rounded. As in the paper, no class gets more than its share, even if slots
    stay empty because other classes are rare. (ClassBalancedReservoir fills these slots.) A class with its full share accepts no more samples. When
    all classes have their full shares, the buffer does not change any more, and `modyn check` warns of this; the buffer of ClassBalancedReservoir
    continues to change. GDumb also trains each model from scratch: set `use_previous_model: false`.

    >>> from modyn.testing.fake_selector import example_presampling as presample
    >>> presample({"strategy": "GDumb", "buffer_size": 4}, [0] * 6, [1])
    [[0, 1, 2, 3], [0, 1, 3, 6]]
    """

    Config = BufferConfig
    restarts = True

    @classmethod
    def notes(cls, config: PresamplingConfig) -> Iterator[tuple[str, str]]:
        """Warn that the buffer does not change once it is full."""
        yield "strategy", GDUMB_FULL

    def decider(self, buffer: Buffer, capacity: int, context: SelectionContext, before: Before) -> GreedyBalancer:
        """Make the greedy balancing sampler with the generator of the trigger."""
        return GreedyBalancer(capacity, context.generator(), buffer.columns["labels"])


class GreedyBalancer:
    """Decides for `GDumbPresampling`."""

    def __init__(self, capacity: int, generator: np.random.Generator, held: Int64Array | None = None) -> None:
        """Args: held: labels of the samples in the buffer, by slot."""
        self._capacity, self._draws = capacity, Draws(generator)
        self._members = members_by_class(np.zeros(0, np.int64) if held is None else held)
        self._num_held = 0 if held is None else len(held)

    def offer(self, labels: Int64Array) -> tuple[Int64Array, Int64Array]:
        """See `Decider.offer`. Raises: ConfigError: there are more classes than slots."""
        slots: dict[int, int] = {}
        members, capacity = self._members, self._capacity
        for row, label in enumerate(labels.tolist()):
            own = members.get(label)
            # The class has its full share: len(own) >= capacity / len(members). The product avoids a division.
            if own is not None and len(own) * len(members) >= capacity:
                continue
            if self._num_held < capacity:
                slot = self._num_held
                self._num_held += 1
            else:
                refuse_too_many_classes("GDumb", len(members) + (own is None), capacity)
                slot = self._take_from_largest()
            members.setdefault(label, []).append(slot)
            slots[slot] = row
        return changes(slots)

    def _take_from_largest(self) -> int:
        """Free the slot of a random sample of the largest class. If several classes are largest, one of these classes is drawn."""
        most = max(map(len, self._members.values()))
        largest = [own for own in self._members.values() if len(own) == most]
        own = largest[self._draws.below(len(largest))]
        number = self._draws.below(most)
        # Removing the last element takes constant time. The order of the slots has no meaning.
        own[number], own[-1] = own[-1], own[number]
        return own.pop()
