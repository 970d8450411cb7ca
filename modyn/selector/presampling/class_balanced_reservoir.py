"""A buffer with equal shares of all classes, uniform within each class."""

from __future__ import annotations

import numpy as np

from modyn.records import Int64Array
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


class ClassBalancedReservoirPresampling(BufferedPresampling):
    """Holds equal shares of all classes, as far as the stream allows. The held samples of a class are a nearly uniform sample of the class (Chrysakis
    and Moens: Online Continual Learning from Imbalanced Data, 2020, algorithm 1, CBRS).

    After the buffer is filled, a class becomes full when it is among the largest classes. A sample of a class that is not full replaces a random
    sample of the largest classes. If a full class has m samples in the buffer and n samples so far, its next sample replaces a random sample of the
    same class with probability m / n. The buffer stays filled.

    >>> from modyn.testing.fake_selector import example_presampling as presample
    >>> presample({"strategy": "ClassBalancedReservoir", "buffer_size": 4}, [0] * 6, [1, 1])
    [[2, 3, 4, 5], [2, 5, 6, 7]]
    """

    Config = BufferConfig
    restarts = True

    def decider(self, buffer: Buffer, capacity: int, context: SelectionContext, before: Before) -> ClassBalancedReservoir:
        """Make a CBRS decider with the generator of the trigger."""
        columns = (before.columns.get(name, np.zeros(0, np.int64)).tolist() for name in ("class_labels", "class_seen"))
        seen = dict(zip(*columns, strict=True))
        full = set(before.columns.get("class_full", np.zeros(0, np.int64)).tolist())
        return ClassBalancedReservoir(capacity, context.generator(), buffer.columns["labels"], seen, full)

    def keeps(self, decider: ClassBalancedReservoir) -> tuple[dict[str, Int64Array], dict[str, object]]:
        """Return the number of samples of each class so far, and the full classes."""
        seen = decider.seen
        columns = {"class_labels": list(seen.keys()), "class_seen": list(seen.values()), "class_full": sorted(decider.full)}
        return {name: np.array(values, np.int64) for name, values in columns.items()}, {}


class ClassBalancedReservoir:
    """Decides for `ClassBalancedReservoirPresampling`."""

    def __init__(
        self,
        capacity: int,
        generator: np.random.Generator,
        held: Int64Array | None = None,
        seen: dict[int, int] | None = None,
        full: set[int] | None = None,
    ) -> None:
        """Args: held: labels of the samples in the buffer, by slot. seen: number of offered samples of each class. full: the full classes."""
        self._capacity, self._draws = capacity, Draws(generator)
        self._members = members_by_class(np.zeros(0, np.int64) if held is None else held)
        self._num_held = 0 if held is None else len(held)
        self.seen, self.full = dict(seen or {}), set(full or ())
        self._largest: list[int] = []
        self._note_largest()

    def offer(self, labels: Int64Array) -> tuple[Int64Array, Int64Array]:
        """See `Decider.offer`. Raises: ConfigError: there are more classes than slots."""
        slots: dict[int, int] = {}
        seen, full, draws = self.seen, self.full, self._draws
        for row, label in enumerate(labels.tolist()):
            count = seen[label] = seen.get(label, 0) + 1
            if self._num_held < self._capacity:
                slot = self._num_held
                self._num_held += 1
                self._members.setdefault(label, []).append(slot)
                if self._num_held == self._capacity:
                    self._note_largest()
            elif label in full and (own := self._members.get(label)):
                # A full class: Vitter's algorithm R within the class.
                if draws.uniform() > len(own) / count:
                    continue
                slot = own[draws.below(len(own))]
            else:
                if not self._members.get(label):
                    num_classes = 1 + sum(map(bool, self._members.values()))
                    refuse_too_many_classes("ClassBalancedReservoir", num_classes, self._capacity)
                slot = self._take_from_largest()
                self._members.setdefault(label, []).append(slot)
                self._note_largest()
            slots[slot] = row
        return changes(slots)

    def _take_from_largest(self) -> int:
        """Free the slot of a random sample of the largest classes."""
        size = len(self._members[self._largest[0]])
        # All largest classes have `size` samples. One number chooses the class and the sample.
        number = self._draws.below(size * len(self._largest))
        own = self._members[self._largest[number // size]]
        # Removing the last element takes constant time. The order of the slots has no meaning.
        own[number % size], own[-1] = own[-1], own[number % size]
        return own.pop()

    def _note_largest(self) -> None:
        """Find the largest classes of a filled buffer, and mark them as full."""
        if self._num_held >= self._capacity:
            most = max(map(len, self._members.values()))
            self._largest = [label for label, own in self._members.items() if len(own) == most]
            self.full.update(self._largest)
