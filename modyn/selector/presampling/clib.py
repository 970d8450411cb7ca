"""A class-balanced buffer of the samples whose training lowers the loss most."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from pydantic import Field

from modyn.columnar import Array
from modyn.records import Float64Array, Int64Array
from modyn.selector.presampling.buffered import (
    Before,
    Buffer,
    BufferConfig,
    BufferedPresampling,
    changes,
    members_by_class,
    refuse_too_many_classes,
)
from modyn.selector.window import Feedback, SelectionContext

_SCORE = "loss_decrease"


class CLiBConfig(BufferConfig):
    """Options of CLiBPresampling."""

    update_rate: float = Field(
        0.1, gt=0, le=1, description="weight of a new measurement in the moving average of a sample's importance"
    )


class CLiBPresampling(BufferedPresampling):
    """Accepts every sample. In a full buffer, a new sample replaces the least important sample of the class with the most samples. The new sample
    already counts as a sample of its class (Koh, Kim, Ha and Choi: Online Continual Learning on Class Incremental Blurry Task Configuration with
    Anytime Inference, 2022, CLIB, sections 4.1 and A.2).

    The importance of a sample is a moving average of the decrease of the buffer's loss in the steps that trained on the sample. The training of the
    previous trigger measures this decrease (`loss_decrease`): the loss of the batch before the step minus the loss of the next batch, both drawn from
    the buffer. The paper computes the loss of the whole buffer instead. A new sample begins with the mean importance of its class. Among the largest
    classes, the class whose first sample is oldest loses a sample. Among equally important samples, the new sample replaces the oldest.

    >>> from modyn.testing.fake_selector import example_presampling as presample
    >>> presample({"strategy": "CLiB", "buffer_size": 4}, [0] * 6, [1, 1])
    [[2, 3, 4, 5], [4, 5, 6, 7]]
    """

    Config = CLiBConfig
    config: CLiBConfig

    @property
    def feedback(self) -> tuple[str, ...]:
        """The needed score: decrease of the loss by the step that trained on a sample."""
        return (_SCORE,)

    def decider(self, buffer: Buffer, capacity: int, context: SelectionContext, before: Before) -> ImportanceBalancer:
        """Make the decider, and update the importance of samples by the measurements of the previous trigger."""
        importance = before.columns.get("importance", np.zeros(0))[before.kept]
        order = before.columns.get("order", np.zeros(0, np.int64))[before.kept]
        if (found := context.feedback(context.trigger_id - 1)) is not None:
            importance = updated(importance, buffer.columns["keys"], found, self.config.update_rate)
        classes = before.columns.get("classes", np.zeros(0, np.int64))
        return ImportanceBalancer(capacity, buffer.columns["labels"], importance, order, classes)

    def keeps(self, decider: ImportanceBalancer) -> tuple[dict[str, Array], dict[str, object]]:
        """Return the importance of each slot, the order in which slots were filled, and the classes in the order of their first samples."""
        return {"importance": decider.importance, "order": decider.order, "classes": decider.classes}, {}


def updated(importance: Float64Array, keys: Int64Array, feedback: Feedback, rate: float) -> Float64Array:
    """Return the importance, float64 (n,), of the samples with these keys, int64 (n,), after a training. Measurements are applied in the order in
    which the training made them.
    """
    result, order = importance.copy(), np.argsort(keys)
    if _SCORE not in feedback.header.widths or not len(keys):
        return result
    for rows in feedback.chunks():
        measured = rows.scores[_SCORE][:, 0].astype(np.float64)
        # For a measured sample that is not in the buffer, the search returns the slot of another key. The comparison below excludes this slot.
        found = np.minimum(np.searchsorted(keys, rows.keys, sorter=order), len(keys) - 1)
        slots = order[found]
        valid = (keys[slots] == rows.keys) & np.isfinite(measured)
        for slot, value in zip(slots[valid].tolist(), measured[valid].tolist(), strict=True):
            result[slot] += rate * (value - result[slot])
    return result


class ImportanceBalancer:
    """Decides for `CLiBPresampling`."""

    def __init__(
        self,
        capacity: int,
        held: Int64Array | None = None,
        importance: Float64Array | None = None,
        order: Int64Array | None = None,
        classes: Int64Array | None = None,
    ) -> None:
        """Args: held, importance: label and importance of each slot. order: for each slot, a number that increases in the order of filling. classes:
        the classes in the order of their first samples.
        """
        self._capacity = capacity
        labels = np.zeros(0, np.int64) if held is None else held
        self._importance: list[float] = [] if importance is None else importance.tolist()
        self._order: list[int] = [] if order is None else order.tolist()
        self._next = max(self._order, default=-1) + 1
        self._classes: dict[int, _Class] = {}
        self._by_size: dict[int, list[tuple[int, _Class]]] = {}
        """For each size, a heap of the classes of this size, ordered by their first samples. A heap may contain classes whose size has changed,
        because an immediate removal would need a search. `_largest` removes these classes.
        """
        self._most = 0
        for label in [] if classes is None else classes.tolist():
            self._classes[label] = _Class(len(self._classes))
        for label, slots in members_by_class(labels).items():
            for slot in slots:
                self._add(self._classes[label], slot, self._importance[slot], self._order[slot])

    @property
    def importance(self) -> Float64Array:
        """Importance of each slot, float64 (n,)."""
        return np.array(self._importance, np.float64)

    @property
    def order(self) -> Int64Array:
        """For each slot, a number that increases in the order of filling, int64 (n,)."""
        return np.array(self._order, np.int64)

    @property
    def classes(self) -> Int64Array:
        """The classes in the order of their first samples, int64 (c,)."""
        return np.array(list(self._classes), np.int64)

    def offer(self, labels: Int64Array) -> tuple[Int64Array, Int64Array]:
        """See `Decider.offer`. Raises: ConfigError: there are more classes than slots."""
        changed: dict[int, int] = {}
        for row, label in enumerate(labels.tolist()):
            own = self._classes.get(label)
            if own is None:
                own = self._classes[label] = _Class(len(self._classes))
            if len(self._importance) < self._capacity:
                slot = len(self._importance)
                self._importance.append(0.0)
                self._order.append(0)
            else:
                slot = self._take_least_important(own)
            # A new sample begins with the mean importance of its class.
            importance = own.total / len(own.heap) if own.heap else 0.0
            self._importance[slot], self._order[slot] = importance, self._next
            self._add(own, slot, importance, self._next)
            self._next += 1
            changed[slot] = row
        return changes(changed)

    def _take_least_important(self, own: _Class) -> int:
        """Free a slot of the class with the most samples, counting the new sample. Args: own: class of the new sample. Raises the errors of
        `offer`."""
        if not own.heap:
            refuse_too_many_classes("CLiB", 1 + sum(bool(other.heap) for other in self._classes.values()), self._capacity)
        largest, size = self._largest(), len(own.heap) + 1
        if size > self._most or (size == self._most and own.number < largest.number):
            largest = own
        importance, _, slot = heappop(largest.heap)
        largest.total -= importance
        self._note_size(largest)
        return slot

    def _largest(self) -> _Class:
        """Return the class with the most samples. If several classes have the most samples, return the class whose first sample is oldest."""
        while True:
            heap = self._by_size[self._most]
            while heap and len(heap[0][1].heap) != self._most:
                heappop(heap)[1].sizes.remove(self._most)  # The size of the class has changed.
            if heap:
                return heap[0][1]
            self._most -= 1

    def _add(self, own: _Class, slot: int, importance: float, order: int) -> None:
        heappush(own.heap, (importance, order, slot))
        own.total += importance
        self._note_size(own)

    def _note_size(self, own: _Class) -> None:
        size = len(own.heap)
        if size not in own.sizes:
            own.sizes.add(size)
            heappush(self._by_size.setdefault(size, []), (own.number, own))
        self._most = max(self._most, size)


class _Class:
    """The samples of a class in a buffer. number: number of the class, in the order of the first samples. heap: (importance, order, slot) of each
    sample. total: sum of the importance of these samples. sizes: sizes under which the class is in `_by_size`.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.heap: list[tuple[float, int, int]] = []
        self.total = 0.0
        self.sizes: set[int] = set()
