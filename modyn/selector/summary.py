"""What a trigger set was chosen from, and what is in it: counted from the run's log and the files of the sets when somebody asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from modyn.records import ClassCount, Int64Array, KeysAndWeights, SelectionSummary
from modyn.selector.window import BLOCK, SampleReader

MOST_CLASSES = 1_000
"""Classes that a summary lists, those with the most candidates; the others are counted together."""
MOST_VALUES = 1_048_576
"""Ages and weights that quantiles are taken of: of a larger set every n-th one counts. 8 MiB."""
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class ChosenSet:
    """A trigger set and the positions [start, end) of the stream that it was chosen from. chunks: its `num_keys` keys in stream order, read once."""

    start: int
    end: int
    num_keys: int
    chunks: Iterator[KeysAndWeights]


class _Among:
    """Finds the keys of a trigger set as the samples of the stream come by."""

    def __init__(self, found: ChosenSet) -> None:
        self._chunks = found.chunks
        self._keys, self._weights = np.zeros(0, np.int64), np.zeros(0, np.float32)

    def among(self, keys: Int64Array) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float32]]:
        """Which of the next samples of the stream are in the set, bool (n,), and the weights of these.

        Args: keys: int64 (n,) of the next samples; none is passed over that is in the set, which has its keys in the order of the stream.
        """
        while len(self._keys) < len(keys) and (chunk := next(self._chunks, None)) is not None:
            self._keys = np.concatenate([self._keys, chunk.keys])
            self._weights = np.concatenate([self._weights, chunk.weights])
        chosen = np.isin(keys, self._keys[: len(keys)])
        count = int(np.count_nonzero(chosen))
        weights = self._weights[:count]
        self._keys, self._weights = self._keys[count:], self._weights[count:]
        return chosen, weights


class _Sampled:
    """Quantiles of values that come in pieces, of which every n-th counts. Args: expected: how many come."""

    def __init__(self, expected: int) -> None:
        self._step, self._next = max(1, -(-expected // MOST_VALUES)), 0
        self._kept: list[npt.NDArray[np.float64]] = []

    def add(self, values: npt.NDArray[np.generic]) -> None:
        self._kept.append(values[self._next :: self._step].astype(np.float64))
        self._next = (self._next - len(values)) % self._step

    def quantiles(self) -> tuple[float, ...]:
        """At QUANTILES; empty without a value."""
        values = np.concatenate([np.zeros(0), *self._kept])
        return tuple(float(value) for value in np.quantile(values, QUANTILES)) if len(values) else ()


def summarize(reader: SampleReader, trigger_id: int, chosen: ChosenSet, before: ChosenSet | None) -> SelectionSummary:
    """Count candidates, chosen samples and their classes, ages and weights in one pass over the stream.

    Candidates are the samples that the run was informed of, also those that were deleted meanwhile. An age is the time from a sample to the
    newest one of the window, in seconds.

    Args: chosen: by this trigger. before: by the trigger before it.
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
    """The classes with the most candidates, by label."""
    most = sorted(label for label, _ in candidates.most_common(MOST_CLASSES))
    return tuple(ClassCount(label, candidates[label], chosen[label]) for label in most)
