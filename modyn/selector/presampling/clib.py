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
    needs_history = True
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
        self._heaps: dict[int, list[tuple[float, int, int]]] = {
            label: [] for label in ([] if classes is None else classes.tolist())
        }
        self._sums = dict.fromkeys(self._heaps, 0.0)
        for label, slots in members_by_class(labels).items():
            for slot in slots:
                self._add(label, slot, self._importance[slot], self._order[slot])

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
        return np.array(list(self._heaps), np.int64)

    def offer(self, labels: Int64Array) -> tuple[Int64Array, Int64Array]:
        """As `Decider.offer`. Raises: ConfigError: there are more classes than room."""
        changed: dict[int, int] = {}
        for row, label in enumerate(labels.tolist()):
            if label not in self._heaps:
                self._heaps[label], self._sums[label] = [], 0.0
                refuse_too_many_classes("CLiB", len(self._heaps), self._capacity)
            if len(self._importance) < self._capacity:
                slot = len(self._importance)
                self._importance.append(0.0)
                self._order.append(0)
            else:
                slot = self._take_least_important(label)
            own = self._heaps[label]
            importance = self._sums[label] / len(own) if own else 0.0
            self._importance[slot], self._order[slot] = importance, self._next
            self._add(label, slot, importance, self._next)
            self._next += 1
            changed[slot] = row
        return changes(changed)

    def _take_least_important(self, label: int) -> int:
        """Free a slot of the class that has most samples, the new one of class `label` counted."""
        largest = max(self._heaps, key=lambda other: len(self._heaps[other]) + (other == label))
        importance, _, slot = heappop(self._heaps[largest])
        self._sums[largest] -= importance
        return slot

    def _add(self, label: int, slot: int, importance: float, order: int) -> None:
        own = self._heaps.setdefault(label, [])
        heappush(own, (importance, order, slot))
        self._sums[label] = self._sums.get(label, 0.0) + importance
