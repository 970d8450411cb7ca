"""A sample balanced by class, of which the samples stay that lower the loss of the others most when they are trained on."""

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
    """Takes every sample, in place of the least important one of the class that then has most samples (Koh, Kim, Ha and Choi: Online Continual
    Learning on Class Incremental Blurry Task Configuration with Anytime Inference, 2022, CLIB, sections 4.1 and A.2).

    The importance of a sample is a moving average of how far the loss of the buffer has fallen in the steps that trained on it. That comes back
    from the training of the trigger before (`loss_decrease`): the loss of the batch before the step less that of the next batch, both drawn
    from the buffer, in place of the paper's pass over all of the buffer. A new sample begins with the mean importance of its class. Of classes
    of equal size, that which came first gives way; of equally important samples, the oldest.
    """

    Config = CLiBConfig
    config: CLiBConfig

    @property
    def feedback(self) -> tuple[str, ...]:
        """How far the loss has fallen in the step that trained on a sample."""
        return (_SCORE,)

    def decider(self, buffer: Buffer, capacity: int, context: SelectionContext, before: Before) -> ImportanceBalancer:
        """The sample-wise importance memory, with what the trigger before has measured."""
        importance = before.columns.get("importance", np.zeros(0))[before.kept]
        order = before.columns.get("order", np.zeros(0, np.int64))[before.kept]
        if (found := context.feedback(context.trigger_id - 1)) is not None:
            importance = updated(importance, buffer.columns["keys"], found, self.config.update_rate)
        classes = before.columns.get("classes", np.zeros(0, np.int64))
        return ImportanceBalancer(capacity, buffer.columns["labels"], importance, order, classes)

    def keeps(self, decider: ImportanceBalancer) -> tuple[dict[str, Array], dict[str, object]]:
        """The importance of each slot, when it was filled, and the classes in the order in which they came."""
        return {"importance": decider.importance, "order": decider.order, "classes": decider.classes}, {}


def updated(importance: Float64Array, keys: Int64Array, feedback: Feedback, rate: float) -> Float64Array:
    """Return the importance, float64 (n,), of the samples with these keys, int64 (n,), after a training, each measurement in its turn."""
    result, order = importance.copy(), np.argsort(keys)
    if _SCORE not in feedback.header.widths or not len(keys):
        return result
    for rows in feedback.chunks():
        measured = rows.scores[_SCORE][:, 0].astype(np.float64)
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
        """Args: held, importance, order: of the slots of the buffer: labels, importance, and numbers that grow with the time at which they were
        filled. classes: in the order in which they came."""
        self._capacity = capacity
        labels = np.zeros(0, np.int64) if held is None else held
        self._importance: list[float] = [] if importance is None else importance.tolist()
        self._order: list[int] = [] if order is None else order.tolist()
        self._next = max(self._order, default=-1) + 1
        self._classes: dict[int, _Class] = {}
        self._by_size: dict[int, list[tuple[int, _Class]]] = {}
        """A heap of the classes of each size, by the order in which they came; also of those that had it once."""
        self._most = 0
        for label in [] if classes is None else classes.tolist():
            self._classes[label] = _Class(len(self._classes))
        for label, slots in members_by_class(labels).items():
            for slot in slots:
                self._add(self._classes[label], slot, self._importance[slot], self._order[slot])

    @property
    def importance(self) -> Float64Array:
        """Of each slot, float64 (n,)."""
        return np.array(self._importance, np.float64)

    @property
    def order(self) -> Int64Array:
        """Numbers that grow with the time at which each slot was filled, int64 (n,)."""
        return np.array(self._order, np.int64)

    @property
    def classes(self) -> Int64Array:
        """The classes in the order in which they came, int64 (c,)."""
        return np.array(list(self._classes), np.int64)

    def offer(self, labels: Int64Array) -> tuple[Int64Array, Int64Array]:
        """As `Decider.offer`. Raises: ConfigError: there are more classes than room."""
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
            importance = own.total / len(own.heap) if own.heap else 0.0
            self._importance[slot], self._order[slot] = importance, self._next
            self._add(own, slot, importance, self._next)
            self._next += 1
            changed[slot] = row
        return changes(changed)

    def _take_least_important(self, own: _Class) -> int:
        """Free a slot of the class that has most samples, the new one counted. Args: own: the class of the new one. Raises as `offer`."""
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
        """The class with most samples; of several, that which came first."""
        while True:
            heap = self._by_size[self._most]
            while heap and len(heap[0][1].heap) != self._most:
                heappop(heap)[1].sizes.remove(self._most)  # its size has changed since
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
    """The samples of a class in a buffer. number: of the class, in the order in which they came. heap: (importance, order, slot). total: of the
    importance. sizes: under which it stands among the classes of a size."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.heap: list[tuple[float, int, int]] = []
        self.total = 0.0
        self.sizes: set[int] = set()
