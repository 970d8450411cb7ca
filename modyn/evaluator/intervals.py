"""Overlapping intervals: their union, and which of them hold a sample. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from modyn.records import Int64Array, Interval


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Disjoint intervals in order that hold the same times; those that touch become one, empty ones nothing.

    >>> union([Interval(5, 9), Interval(0, 3), Interval(3, 6), Interval(7, 7)])
    [Interval(start=0, end=9)]
    """
    merged: list[Interval] = []
    for interval in sorted((i for i in intervals if i.start < i.end), key=lambda i: (i.start, i.end)):
        if merged and interval.start <= merged[-1].end:
            merged[-1] = Interval(merged[-1].start, max(merged[-1].end, interval.end))
        else:
            merged.append(interval)
    return merged


def members(intervals: Sequence[Interval], timestamps: Int64Array) -> Iterator[tuple[int, Int64Array]]:
    """For each interval that holds any of the samples: its number, and the positions of those it holds. timestamps: int64 (n,)."""
    if not len(timestamps):
        return
    first, last = int(timestamps.min()), int(timestamps.max())
    for number, interval in enumerate(intervals):
        if interval.start <= last and first < interval.end:
            inside = np.flatnonzero((timestamps >= interval.start) & (timestamps < interval.end))
            if len(inside):
                yield number, inside
