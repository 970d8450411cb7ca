"""Ranges of the numbers that a model was trained on, to see far outside of them. Imports torch: for workers only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from modyn.dataset.batch import Batch

WARM_UP_ROWS: Final = 1000
"""Samples with which ranges are learned before any is called extreme."""

Range = tuple[float, float]
"""Smallest and largest."""


class TensorRanges:
    """The range of all numbers of each input of a model so far, and of labels that are fractions. One range for an input, whatever its shape: a pixel
    or a count that is nearly always 0 is no news where others are not. Reads from the device once a look."""

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        """Args: state: of the ranges that these go on from; None: there are none."""
        self._rows: int = 0 if state is None else state["rows"]
        self._ranges: dict[str, Range | None] = {}
        """None: numbers that are not finite were accepted, and none is extreme."""
        if state is not None:
            self._ranges = {name: None if found is None else (found[0], found[1]) for name, found in state["ranges"].items()}

    def has_extremes(self, batch: Batch) -> bool:
        """Whether a number lies outside of the range before by more than its width, or is none. Where none does, the batch widens the ranges."""
        found = ranges_of(batch)
        if self._rows >= WARM_UP_ROWS and any(self._is_extreme(name, *ends) for name, ends in found.items()):
            return True
        self._widen({name: ends for name, ends in found.items() if all(map(math.isfinite, ends))}, len(batch))
        return False

    def accept_extremes(self, batch: Batch) -> None:
        """Widen the ranges by a batch that has extremes."""
        self._widen(ranges_of(batch), len(batch))

    def _is_extreme(self, name: str, low: float, high: float) -> bool:
        if (known := self._ranges.get(name)) is None:
            return False
        width = known[1] - known[0]
        return width > 0 and not (known[0] - width <= low and high <= known[1] + width)  # NaN is in no range.

    def _widen(self, found: Mapping[str, Range], num_rows: int) -> None:
        self._rows += num_rows
        for name, (low, high) in found.items():
            known = self._ranges.setdefault(name, (low, high))
            if known is not None:
                is_finite = math.isfinite(low) and math.isfinite(high)
                self._ranges[name] = (min(known[0], low), max(known[1], high)) if is_finite else None

    def state(self) -> dict[str, Any]:
        """What others go on from; JSON can express it."""
        return {"rows": self._rows, "ranges": {name: found and list(found) for name, found in self._ranges.items()}}


def ranges_of(batch: Batch) -> dict[str, Range]:
    """Smallest and largest number of each input, and of the labels, where they are fractions and there are any; NaN where one is NaN.

    >>> ranges_of(Batch(torch.arange(2), torch.tensor([[0.0, 3.0], [-1.0, 2.0]]), torch.arange(2), torch.ones(2)))
    {'data': (-1.0, 3.0)}
    """
    data: dict[str, Tensor] = (
        {"data": batch.data} if isinstance(batch.data, Tensor)
        else {f"data {at}": part for at, part in enumerate(batch.data)} if isinstance(batch.data, tuple)
        else {f"data {name}": part for name, part in batch.data.items()}
    )  # fmt: skip
    looked_at = {
        name: part for name, part in {**data, "labels": batch.labels}.items() if part.is_floating_point() and part.numel()
    }
    if not looked_at:
        return {}
    ends = torch.stack([end.double() for part in looked_at.values() for end in torch.aminmax(part.detach())]).tolist()
    return dict(zip(looked_at, zip(ends[::2], ends[1::2], strict=True), strict=True))
