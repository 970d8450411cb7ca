"""A buffer of samples whose gradients differ most in direction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from itertools import chain
from typing import Final, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from modyn.columnar import Array
from modyn.records import Float32Array, Float64Array, Int64Array
from modyn.selector.presampling import PresamplingPolicy
from modyn.selector.presampling.buffered import Before, Buffer, BufferConfig, in_stream_order, index_of, offers, store
from modyn.selector.window import Feedback, Selection, SelectionContext, SelectionWindow, uniform

_MOST_COMPARED: Final = 8192
"""Largest number of samples among which `iqp` chooses at once. For this number, a matrix has 512 MiB."""


class GSSConfig(BufferConfig):
    """Options of GSSPresampling."""

    variant: Literal["greedy", "iqp"] = Field(
        "greedy",
        description="`greedy`: compare each sample with a few of the buffer; `iqp`: choose the whole buffer again repeatedly",
    )
    num_compared: int = Field(
        10, ge=1, description="for `greedy`: number of samples of the buffer with which a new one is compared"
    )
    recent_size: int = Field(
        100,
        ge=1,
        description="for `iqp`: number of new samples after which the buffer is chosen again; together with `buffer_size` at most "
        f"{_MOST_COMPARED}",
    )
    gradient_size: int = Field(
        32,
        ge=2,
        le=4096,
        description="number of values to which the gradient of a sample by the last layer's weights is projected at random",
    )

    @field_validator("recent_size")
    @classmethod
    def _check_compared(cls, value: int, info: ValidationInfo) -> int:
        held = info.data.get("buffer_size", 0)
        if info.data.get("variant") == "iqp" and value + held > _MOST_COMPARED:
            raise ValueError(
                f"{value} and buffer_size {held} are more than the {_MOST_COMPARED} samples that iqp compares; lower one"
            )
        return value


class GSSPresampling(PresamplingPolicy):
    """Trains on all new samples, and on a buffer of earlier samples whose gradients differ most in direction (Aljundi, Lin, Goujaud and Bengio:
    Gradient based Sample Selection for Online Continual Learning, 2019, algorithms 1, GSS-IQP, and 2, GSS-Greedy).

    A sample can enter the buffer after a training on it. In its last epoch, the training of the previous trigger returns for each sample the gradient
    with respect to the weights of the last layer. A fixed random projection reduces the gradient to `gradient_size` numbers, and preserves cosines on
    average. Each training renews the gradients of the buffer. With `limit`, at least half of the trigger set is reserved for the buffer, and the new
    samples are drawn uniformly. New samples that are not drawn are never trained on, and never enter the buffer. If there are no new samples and the
    buffer is empty, the policy takes a uniform sample of the window.

    >>> from modyn.testing.fake_selector import example_presampling as presample
    >>> presample({"strategy": "GSS", "buffer_size": 4}, [0] * 3, [1] * 2)  # No training has returned gradients: the buffer is empty.
    [[0, 1, 2], [3, 4]]
    """

    Config = GSSConfig
    needs_history = True
    config: GSSConfig

    @property
    def feedback(self) -> tuple[str, ...]:
        """The projected gradient."""
        return (f"gradient_{self.config.gradient_size}",)

    def select(self, window: SelectionWindow, limit: int, context: SelectionContext) -> Selection:
        """Renew the buffer with the scores of the previous training. Select the buffer and the new samples, at most `limit` keys."""
        if not limit:
            return Selection(0, iter(()))
        before = Before.load(window, context, restarts=False)
        new = replace(window, start=before.first)
        # Without a limit of the pipeline, `limit` is the size of the window, and the window contains both the buffer and the new samples.
        rest = limit if limit == len(window) else max(limit - len(new), (limit + 1) // 2)
        buffer = self._renew_buffer(window, before, context, self.config.capacity(window, rest))
        end = int(window.reader.positions(new.end - 1, new.end)[0]) + 1 if len(new) else before.end
        # The next trigger offers the samples from `previous` on, because the training on this trigger's set returns their gradients.
        store(context, window, buffer, end, {}, {"previous": before.end})
        if not len(new) and not len(buffer):
            return uniform(window, min(self.config.buffer_size, limit), context.generator(1))
        held = in_stream_order(buffer.columns["positions"], buffer.columns["keys"], window.chunk_size)
        fresh = uniform(new, limit - held.num_keys, context.generator(1))
        return Selection(held.num_keys + fresh.num_keys, chain(held.chunks, fresh.chunks))

    def _renew_buffer(self, window: SelectionWindow, before: Before, context: SelectionContext, capacity: int) -> Buffer:
        """Offer the samples of the previous trigger to the buffer, and return the buffer."""
        (name,), buffer, generator = self.feedback, before.buffer, context.generator()
        size = self.config.gradient_size
        buffer.columns.setdefault("gradients", np.zeros((0, size), np.float32))
        buffer.columns.setdefault("scores", np.zeros(0))
        if len(buffer) > capacity:
            # The capacity may be less than before, for example if more new samples share the limit.
            buffer.keep(np.sort(generator.choice(len(buffer), capacity, replace=False)))
        found = context.feedback(context.trigger_id - 1)
        if found is None or found.header.widths.get(name) != size:
            return buffer
        columns = buffer.columns
        gradients = _renewed_gradients(columns["keys"], columns["gradients"], found, name)
        held = columns["keys"], gradients, columns["scores"]
        selector = (
            Greedy(capacity, generator, *held, self.config.num_compared)
            if self.config.variant == "greedy"
            else Quadratic(capacity, *held, self.config.recent_size)
        )
        for rows in found.last_epoch():
            own = rows.scores[name]
            offered = ~np.isin(rows.keys, columns["keys"]) & np.isfinite(own).all(1)
            if len(window.deleted):
                offered &= ~window.deleted.contains(rows.keys)
            selector.offer(rows.keys[offered], own[offered])
        selector.finish()
        return _located(selector, buffer, window, before)


def _renewed_gradients(keys: Int64Array, gradients: Float32Array, found: Feedback, name: str) -> Float32Array:
    """Return the newest known gradients of the samples with these keys, (n, d)."""
    renewed, order = gradients.copy(), np.argsort(keys)
    for rows in found.last_epoch() if len(keys) else ():
        slots = order[np.minimum(np.searchsorted(keys, rows.keys, sorter=order), len(keys) - 1)]
        own = rows.scores[name]
        valid = (keys[slots] == rows.keys) & np.isfinite(own).all(1)
        renewed[slots[valid]] = own[valid]
    return renewed


def _located(selector: GradientSelector, buffer: Buffer, window: SelectionWindow, before: Before) -> Buffer:
    """Return the chosen samples as a buffer, with their positions in the stream; samples outside the window are left out."""
    rows: dict[str, list[Array]] = {name: [] for name in ("positions", "keys", "labels")}
    previous = index_of(window, before.values.get("previous", window.stream_start))
    held = {name: buffer.columns[name] for name in rows}
    # The buffer knows the positions of its samples. The other chosen samples are found by their keys in the part of the stream that was offered.
    for part in chain([held], offers(replace(window, end=before.first), previous)):
        chosen = np.isin(part["keys"], selector.keys)
        for name, values in part.items():
            rows[name].append(values[chosen])
    columns: dict[str, Array] = {name: np.concatenate(parts) for name, parts in rows.items()}
    order = np.argsort(selector.keys)
    slots = order[np.searchsorted(selector.keys, columns["keys"], sorter=order)]
    return Buffer({**columns, "gradients": selector.gradients[slots], "scores": selector.scores[slots]})


class GradientSelector(ABC):
    """A buffer of samples with their gradients. `offer` gets the samples in order. keys: int64 (n,). gradients: float32 (n, d). scores: float64
    (n,), for the greedy variant.
    """

    def __init__(self, capacity: int, keys: Int64Array, gradients: Float32Array, scores: Float64Array) -> None:
        self._capacity = capacity
        self.keys, self.gradients, self.scores = keys, gradients, scores

    @abstractmethod
    def offer(self, keys: Int64Array, gradients: Float32Array) -> None:
        """Offer samples that are not in the buffer, in this order. The result does not depend on how the samples are split into calls."""

    @abstractmethod
    def finish(self) -> None:
        """Decide on the samples that were offered since the last decision."""

    def _append(self, keys: Int64Array, gradients: Float32Array, scores: Float64Array) -> None:
        self.keys = np.concatenate([self.keys, keys])
        self.gradients = np.concatenate([self.gradients, gradients])
        self.scores = np.concatenate([self.scores, scores])


class Greedy(GradientSelector):
    """GSS-Greedy, algorithm 2. The score of a sample is 1 plus the greatest cosine between its gradient and the gradients of a few random samples of
    the buffer, at the time of its offer. If a new sample has a score C below 1, its gradient points away from all these gradients. Then a sample i of
    the buffer is drawn with a probability proportional to its score Cᵢ. The new sample replaces sample i with probability Cᵢ / (Cᵢ + C).
    """

    def __init__(
        self,
        capacity: int,
        generator: np.random.Generator,
        keys: Int64Array,
        gradients: Float32Array,
        scores: Float64Array,
        num_compared: int,
    ) -> None:
        super().__init__(capacity, keys, gradients, scores)
        self._generator, self._num_compared = generator, num_compared
        self._directions = _directions(gradients)

    def offer(self, keys: Int64Array, gradients: Float32Array) -> None:
        """See `GradientSelector.offer`."""
        room = self._capacity - len(self.keys)
        size = len(self.keys)
        self._append(keys[:room], gradients[:room], np.zeros(len(keys[:room])))
        directions = _directions(gradients)
        self._directions = np.concatenate([self._directions, directions[:room]])
        for row in range(min(room, len(keys))):
            self.scores[size + row] = self._score(directions[row], size + row)
        for row in range(room, len(keys)):
            score = self._score(directions[row], len(self.keys))
            total = self.scores.cumsum()
            if score >= 1 or not total[-1] > 0:
                continue
            slot = int(np.searchsorted(total, self._generator.random() * total[-1], side="right"))
            # By rounding, the drawn number may equal the total.
            slot = min(slot, len(self.keys) - 1)
            if self._generator.random() * (self.scores[slot] + score) < self.scores[slot]:
                self.keys[slot], self.gradients[slot], self.scores[slot] = keys[row], gradients[row], score
                self._directions[slot] = directions[row]

    def finish(self) -> None:
        """Do nothing, because `offer` decides about each sample at once."""

    def _score(self, direction: Float64Array, num_held: int) -> float:
        """Return 1 plus the greatest cosine with random samples among the first `num_held`. For an empty buffer, return 1, as for a gradient that is
        orthogonal to all gradients of the buffer.
        """
        if not num_held:
            return 1.0
        compared = self._directions[:num_held]
        if num_held > self._num_compared:
            compared = compared[self._generator.choice(num_held, self._num_compared, replace=False)]
        return 1.0 + float((compared @ direction).max())


class Quadratic(GradientSelector):
    """GSS-IQP, algorithm 1. After more than `recent_size` offered samples, and at the end, the policy chooses the buffer again. Among the sets of
    given size from buffered and offered samples, it chooses a set with a small sum of cosines over all pairs.
    """

    def __init__(self, capacity: int, keys: Int64Array, gradients: Float32Array, scores: Float64Array, recent_size: int) -> None:
        super().__init__(capacity, keys, gradients, scores)
        self._recent_size = recent_size
        self._recent: list[tuple[Int64Array, Float32Array]] = []
        self._num_recent = 0

    def offer(self, keys: Int64Array, gradients: Float32Array) -> None:
        """See `GradientSelector.offer`."""
        start = 0
        while start < len(keys):
            stop = min(start + self._recent_size + 1 - self._num_recent, len(keys))
            self._recent.append((keys[start:stop], gradients[start:stop]))
            self._num_recent += stop - start
            if self._num_recent > self._recent_size:
                self.finish()
            start = stop

    def finish(self) -> None:
        """Choose the buffer again."""
        for keys, gradients in self._recent:
            self._append(keys, gradients, np.zeros(len(keys)))
        self._recent, self._num_recent = [], 0
        if len(self.keys) > self._capacity:
            directions = _directions(self.gradients)
            chosen = least_similar(directions @ directions.T, self._capacity)
            self.keys, self.gradients, self.scores = self.keys[chosen], self.gradients[chosen], self.scores[chosen]


def least_similar(similarities: Float64Array, size: int) -> Int64Array:
    """Choose `size` of n items with a small sum of similarities, (n, n) and symmetric, over all pairs. Returns the numbers of the items, ascending.

    The result is approximate, because this integer quadratic program is NP-hard. The item most similar to the rest is removed until `size` items are
    left. Then items are exchanged one for one while this lowers the sum; no single exchange lowers the result further.
    """
    kept = np.ones(len(similarities), np.bool_)
    sums, own = similarities.sum(1), np.diag(similarities)
    for _ in range(len(similarities) - size):
        # Without item i, the sum over all ordered pairs is smaller by 2 · sumsᵢ - ownᵢ.
        worst = int(np.where(kept, 2 * sums - own, -np.inf).argmax())
        kept[worst] = False
        sums -= similarities[worst]
    while True:
        inside, outside = np.flatnonzero(kept), np.flatnonzero(~kept)
        if not len(inside) or not len(outside):
            return inside
        # Row i, column j: change of the sum if kept item i leaves and item j enters. The last term corrects for the pair (i, j).
        change = (own - 2 * sums)[inside, None] + (own + 2 * sums)[None, outside] - 2 * similarities[np.ix_(inside, outside)]
        leaves, enters = np.unravel_index(int(change.argmin()), change.shape)
        # A smaller decrease may be a rounding error. With rounding errors, the loop might never end.
        if change[leaves, enters] > -1e-9:
            return inside
        kept[inside[leaves]], kept[outside[enters]] = False, True
        sums += similarities[outside[enters]] - similarities[inside[leaves]]


def _directions(gradients: Float32Array) -> Float64Array:
    """Scale gradients to length 1, float64 (n, d). A zero gradient stays 0, which is orthogonal to all gradients."""
    wide = gradients.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    directions: Float64Array = wide / np.where(lengths > 0, lengths, 1.0)
    return directions
