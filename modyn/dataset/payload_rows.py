"""Some samples of payloads that have arrived, and the samples of several answers as one: in one buffer, in the order asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from modyn._core import take
from modyn.records import Int64Array
from modyn.storage.flight import Payloads


def no_payloads() -> Payloads:
    nothing = np.empty(0, np.int64)
    return Payloads(nothing, nothing, np.empty(0, np.uint8), np.zeros(1, np.int64))


def neighbours(payloads: Payloads, start: int, stop: int) -> Payloads:
    """Samples [start, stop), as views: `data` holds their bytes and no others."""
    bounds = payloads.offsets[start : stop + 1]
    offsets = bounds - bounds[0] if bounds[0] else bounds
    data = payloads.data[bounds[0] : bounds[-1]]
    return Payloads(payloads.keys[start:stop], payloads.labels[start:stop], data, offsets, payloads.record_size)


def taken(payloads: Payloads, rows: Int64Array) -> Payloads:
    """Samples `rows`, int64 (n,), in that order, duplicates allowed: copied."""
    size = payloads.common_size
    if size:
        data, offsets = take(payloads.data[payloads.offsets[0] : payloads.offsets[-1]], size, rows)
    else:
        data, offsets = take(payloads.data, payloads.offsets, rows)
    return Payloads(payloads.keys[rows], payloads.labels[rows], data, offsets, size)


def concatenated(parts: Sequence[Payloads]) -> Payloads:
    """The samples of all parts, in order, in one buffer; a single part is not copied."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return no_payloads()
    sizes = {part.record_size for part in parts}
    return Payloads(
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.data[part.offsets[0] : part.offsets[-1]] for part in parts]),
        _ends(np.concatenate([part.offsets[1:] - part.offsets[:-1] for part in parts])),
        sizes.pop() if len(sizes) == 1 else None,
    )


def _ends(lengths: Int64Array) -> Int64Array:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
