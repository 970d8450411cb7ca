"""Summarize trigger sets and their candidates on request, from the run's log and the files of the sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from modyn.records import ClassCount, Int64Array, KeysAndWeights, SelectionSummary
from modyn.selector.window import BLOCK, SampleReader

MOST_CLASSES = 1_000
"""Largest number of classes that a summary lists. A summary lists the classes with the most candidates; `num_classes` counts all classes."""
MOST_VALUES = 1_048_576
"""Largest number of ages or weights from which quantiles are computed (8 MiB). For a larger set, every n-th value is used."""
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class ChosenSet:
    """A trigger set, and the positions [start, end) of its candidates in the stream. chunks: its `num_keys` keys in stream order, read once."""

    start: int
    end: int
    num_keys: int
    chunks: Iterator[KeysAndWeights]


class _Among:
    """Finds the keys of a trigger set in one pass over the stream."""

    def __init__(self, found: ChosenSet) -> None:
        self._chunks = found.chunks
        self._keys, self._weights = np.zeros(0, np.int64), np.zeros(0, np.float32)

    def among(self, keys: Int64Array) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float32]]:
        """Return which of the next samples of the stream are in the set, bool (n,), and the weights of these samples.

        Args: keys: keys of the next samples, int64 (n,). Calls must not skip a sample of the set, because the set has its keys in stream order.
        """
        while len(self._keys) < len(keys) and (chunk := next(self._chunks, None)) is not None:
            self._keys = np.concatenate([self._keys, chunk.keys])
            self._weights = np.concatenate([self._weights, chunk.weights])
        # At most len(keys) keys of the set can be among these samples. The set and the samples are in stream order, so these are the next keys of the
        # set.
        chosen = np.isin(keys, self._keys[: len(keys)])
        count = int(np.count_nonzero(chosen))
        weights = self._weights[:count]
        self._keys, self._weights = self._keys[count:], self._weights[count:]
        return chosen, weights


class _Sampled:
    """Quantiles of every n-th value of a sequence that arrives in chunks. Args: expected: length of the sequence."""

    def __init__(self, expected: int) -> None:
        self._step, self._next = max(1, -(-expected // MOST_VALUES)), 0
        self._kept: list[npt.NDArray[np.float64]] = []

    def add(self, values: npt.NDArray[np.generic]) -> None:
        self._kept.append(values[self._next :: self._step].astype(np.float64))
        # Index of the next value to keep, in the next chunk.
        self._next = (self._next - len(values)) % self._step

    def quantiles(self) -> tuple[float, ...]:
        """Return the values at QUANTILES; empty without values."""
        values = np.concatenate([np.zeros(0), *self._kept])
        return tuple(float(value) for value in np.quantile(values, QUANTILES)) if len(values) else ()


def summarize(reader: SampleReader, trigger_id: int, chosen: ChosenSet, before: ChosenSet | None) -> SelectionSummary:
    """Count candidates, chosen samples and their classes, ages and weights. The window is read twice: first for the newest timestamp, then for the
    counts.

    Candidates are all samples of the window, including samples that were deleted later. An age is the time from a sample to the newest sample of the
    window, in seconds.

    Args: chosen: set of this trigger. before: set of the previous trigger.
    """
    start, end = chosen.start, chosen.end
    newest = max((int(reader.read(at, min(at + BLOCK, end)).timestamps.max()) for at in range(start, end, BLOCK)), default=0)
    of_chosen, of_before = _Among(chosen), None if before is None else _Among(before)
    ages, candidate_ages = _Sampled(chosen.num_keys), _Sampled(end - start)
    weights = _Sampled(chosen.num_keys)
    candidates: Counter[int] = Counter()
    kept: Counter[int] = Counter()
    num_shared = 0
    has_classes = True
    for at in range(start if before is None else min(start, before.start), end, BLOCK):
        samples = reader.read(at, min(at + BLOCK, end))
        in_before = np.zeros(len(samples), np.bool_) if of_before is None else of_before.among(samples.keys)[0]
        # The previous window may begin earlier. Samples before `start` belong only to the previous set.
        inside = slice(max(0, start - at), None)
        keys, labels = samples.keys[inside], samples.labels[inside]
        age = (newest - samples.timestamps[inside]).astype(np.float64)
        is_chosen, its_weights = of_chosen.among(keys)
        num_shared += int(np.count_nonzero(is_chosen & in_before[inside]))
        candidate_ages.add(age)
        ages.add(age[is_chosen])
        weights.add(its_weights)
        has_classes = has_classes and labels.dtype.kind == "i"
        if has_classes:
            candidates.update(_counts(labels))
            kept.update(_counts(labels[is_chosen]))
    return SelectionSummary(
        trigger_id=trigger_id,
        num_candidates=end - start,
        num_chosen=chosen.num_keys,
        num_shared=num_shared,
        classes=_listed(candidates, kept) if has_classes else (),
        num_classes=len(candidates) if has_classes else 0,
        ages=ages.quantiles(),
        candidate_ages=candidate_ages.quantiles(),
        weights=weights.quantiles(),
    )


def _counts(labels: npt.NDArray[np.generic]) -> dict[int, int]:
    values, counts = np.unique(labels, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _listed(candidates: Counter[int], chosen: Counter[int]) -> tuple[ClassCount, ...]:
    """List the classes with the most candidates, ordered by label."""
    most = sorted(label for label, _ in candidates.most_common(MOST_CLASSES))
    return tuple(ClassCount(label, candidates[label], chosen[label]) for label in most)
