"""Ranges of the numbers that a model was trained on, to detect numbers far outside of these ranges. Imports torch: for workers only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from modyn.dataset.batch import Batch

WARM_UP_ROWS: Final = 1000
"""Number of samples from which ranges are learned before a number can be extreme."""

Range = tuple[float, float]
"""Smallest and largest number."""


class TensorRanges:
    """The range of all numbers so far in each input of a model, and in labels that are fractions. An input of any shape has one range, so that a
    usual number at an unusual position, such as a bright pixel in a dark corner, is not extreme. Each check of a batch reads once from the device."""

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        """Args: state: state of earlier ranges, which these ranges continue; None to begin without ranges."""
        self._rows: int = 0 if state is None else state["rows"]
        self._ranges: dict[str, Range | None] = {}
        """Range of each input by name. A range is None after an infinite number or NaN was accepted; then no number of this input is extreme."""
        if state is not None:
            self._ranges = {name: None if found is None else (found[0], found[1]) for name, found in state["ranges"].items()}

    def has_extremes(self, batch: Batch) -> bool:
        """Return whether a number is NaN or outside of the previous range of its input by more than the range's width. If no number is extreme, the
        batch widens the ranges.
        """
        found = ranges_of(batch)
        if self._rows >= WARM_UP_ROWS and any(self._is_extreme(name, *ends) for name, ends in found.items()):
            return True
        self._widen({name: ends for name, ends in found.items() if all(map(math.isfinite, ends))}, len(batch))
        return False

    def accept_extremes(self, batch: Batch) -> None:
        """Widen the ranges by a batch with extreme numbers."""
        self._widen(ranges_of(batch), len(batch))

    def _is_extreme(self, name: str, low: float, high: float) -> bool:
        if (known := self._ranges.get(name)) is None:
            return False
        width = known[1] - known[0]
        return width > 0 and not (known[0] - width <= low and high <= known[1] + width)  # NaN is outside of every range.

    def _widen(self, found: Mapping[str, Range], num_rows: int) -> None:
        self._rows += num_rows
        for name, (low, high) in found.items():
            known = self._ranges.setdefault(name, (low, high))
            if known is not None:
                is_finite = math.isfinite(low) and math.isfinite(high)
                self._ranges[name] = (min(known[0], low), max(known[1], high)) if is_finite else None

    def state(self) -> dict[str, Any]:
        """Return the state from which other ranges continue, as JSON data."""
        return {"rows": self._rows, "ranges": {name: found and list(found) for name, found in self._ranges.items()}}


def ranges_of(batch: Batch) -> dict[str, Range]:
    """Return the smallest and largest number of each input, and of labels that are fractions; NaN if a number is NaN.

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
    # One copy reads all numbers from the device.
    ends = torch.stack([end.double() for part in looked_at.values() for end in torch.aminmax(part.detach())]).tolist()
    return dict(zip(looked_at, zip(ends[::2], ends[1::2], strict=True), strict=True))
