"""A greedily balanced sample of all classes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from modyn.config.selection_advice import GDUMB_FULL
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
    """Takes a sample while its class holds less than its equal share of the buffer, if need be in place of a random sample of the largest class
    (Prabhu, Torr and Dokania: GDumb: A Simple Approach that Questions Our Progress in Continual Learning, 2020, algorithm 1).

    The share is buffer_size over the classes seen so far, and not rounded. As in the paper, a class does not get more than it where others do not
    use theirs, so room is left free for classes of which little has come yet; ClassBalancedReservoir fills it. A class that has its share takes no
    sample any more: once all have, the buffer stands still, which `modyn check` warns of; ClassBalancedReservoir goes on. For the rest of the
    method, train from scratch (`use_previous_model: false`).
    """

    Config = BufferConfig
    restarts = True

    @classmethod
    def notes(cls, config: PresamplingConfig) -> Iterator[tuple[str, str]]:
        """A warning that the buffer stands still once it is full."""
        yield "strategy", GDUMB_FULL

    def decider(self, buffer: Buffer, capacity: int, context: SelectionContext, before: Before) -> GreedyBalancer:
        """The greedy balancing sampler, with the generator of the trigger."""
        return GreedyBalancer(capacity, context.generator(), buffer.columns["labels"])


class GreedyBalancer:
    """Decides for `GDumbPresampling`."""

    def __init__(self, capacity: int, generator: np.random.Generator, held: Int64Array | None = None) -> None:
        """Args: held: the labels of the samples in the buffer, by slot."""
        self._capacity, self._draws = capacity, Draws(generator)
        self._members = members_by_class(np.zeros(0, np.int64) if held is None else held)
        self._num_held = 0 if held is None else len(held)

    def offer(self, labels: Int64Array) -> tuple[Int64Array, Int64Array]:
        """As `Decider.offer`. Raises: ConfigError: there are more classes than room."""
        slots: dict[int, int] = {}
        members, capacity = self._members, self._capacity
        for row, label in enumerate(labels.tolist()):
            own = members.get(label)
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
        """Free the slot of a random sample of the largest class, of several a random one."""
        most = max(map(len, self._members.values()))
        largest = [own for own in self._members.values() if len(own) == most]
        own = largest[self._draws.below(len(largest))]
        number = self._draws.below(most)
        own[number], own[-1] = own[-1], own[number]
        return own.pop()
