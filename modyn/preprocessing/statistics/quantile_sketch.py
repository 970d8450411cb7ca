"""Quantiles of a stream of numbers in bounded memory, with the same result for any batches and order of merges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from modyn.errors import CorruptStateError
from modyn.preprocessing.base import State, take
from modyn.preprocessing.columns import Float64Array, Int64Array

PRECISION: Final = 52
"""Number of bits of the mantissa of a float64. With all bits, each distinct value has its own bin."""
MAX_BINS: Final = 8192
"""Largest number of bins, which take 128 KiB. Numbers up to 1e140 have fewer than 3,000 combinations of exponent and sign, so that a precision of
0 always fits.
"""


class QuantileSketch:
    """A histogram whose bins are the upper bits of float64: sign, exponent and the first `precision` bits of the mantissa.

    **Memory.** There are at most `MAX_BINS` bins. While the values need more bins, the precision is reduced by 1, which joins bins in pairs.

    **Error.** Quantiles are exact up to 8,192 distinct values. After that, with x_r the r-th smallest of all values, the estimate for rank r is
    within 2^-(precision + 1) · |x_r| (values below 2.3e-308: within 2.3e-308). The reason: a bin with exponent e has the width 2^(e - precision), the
    estimate is the middle of the bin, and |x_r| >= 2^e. Ranks are exact. A quantile between two ranks is interpolated, with the error of the larger
    rank. Values with k exponents (positive and negative ones counted separately) need at most k · 2^precision bins, so the error is at most 0.1 % for
    16 exponents and 0.4 % for 64; `error` is the current bound.

    **Merges.** Counts are whole numbers, and the precision is the largest for which the bins of all values fit. The state therefore depends only on
    the values, not on the order, batches or merges of the values.

    Source: bins by the bits of floating-point numbers as in Tene, HdrHistogram, 2012; joining in pairs as in Epicoco et al., UDDSketch, 2020.
    """

    def __init__(self) -> None:
        self.precision = PRECISION
        self._bins: Int64Array = np.empty(0, np.int64)
        """Bins in ascending order; negative for negative numbers."""
        self._counts: Int64Array = np.empty(0, np.int64)
        self._range = (np.inf, -np.inf)

    @property
    def count(self) -> int:
        """Return the number of values."""
        return int(self._counts.sum())

    @property
    def error(self) -> float:
        """Return the largest relative error of a value, see the class."""
        return float(2.0 ** -(self.precision + 1)) if self.precision < PRECISION else 0.0

    def update(self, values: Float64Array) -> None:
        """Add values. Args: values: float64 (n,), within ± 1e140, NaN where missing."""
        values = values[~np.isnan(values)]
        if not len(values):
            return
        self._range = (min(self._range[0], float(values.min())), max(self._range[1], float(values.max())))
        bits = np.abs(values).view(np.int64) >> (PRECISION - self.precision)
        self._add(*np.unique(np.where(values < 0, -bits, bits), return_counts=True))

    def merge(self, other: QuantileSketch) -> None:
        """Add the values that `other` has seen."""
        bins, counts = other._bins, other._counts
        while self.precision > other.precision:
            self._coarsen()
        for _ in range(other.precision - self.precision):
            bins, counts = _joined(bins, counts)
        self._range = (min(self._range[0], other._range[0]), max(self._range[1], other._range[1]))
        self._add(bins, counts)

    def _add(self, bins: Int64Array, counts: Int64Array) -> None:
        """Args: bins: ascending, int64 (m,). counts: int64 (m,)."""
        places = np.searchsorted(self._bins, bins)
        known = places < len(self._bins)
        known[known] = self._bins[places[known]] == bins[known]
        self._counts[places[known]] += counts[known]
        if not known.all():
            self._bins = np.insert(self._bins, places[~known], bins[~known])
            self._counts = np.insert(self._counts, places[~known], counts[~known])
            while len(self._bins) > MAX_BINS:
                self._coarsen()

    def _coarsen(self) -> None:
        self._bins, self._counts = _joined(self._bins, self._counts)
        self.precision -= 1

    def quantiles(self, shares: Float64Array) -> Float64Array:
        """Estimate quantiles, interpolated like numpy.quantile by default.

        Args: shares: float64 (q,) in [0, 1]. Returns: float64 (q,), ascending with `shares`; NaN without values.
        """
        if not len(self._bins):
            return np.full(len(shares), np.nan)
        ends = np.cumsum(self._counts)
        positions = shares * (ends[-1] - 1)
        lower = np.floor(positions).astype(np.int64)
        shift = PRECISION - self.precision
        middles = np.where(self._bins == 0, 0, (np.abs(self._bins) << shift) + (1 << shift >> 1)).view(np.float64)
        values = np.clip(np.where(self._bins < 0, -middles, middles), *self._range)
        below = values[np.searchsorted(ends, lower, side="right")]
        above = values[np.searchsorted(ends, np.minimum(lower + 1, ends[-1] - 1), side="right")]
        found: Float64Array = below + (above - below) * (positions - lower)
        return found

    def state(self) -> State:
        """Return precision, smallest and largest value, and arrays of bins and counts."""
        return {
            "precision": self.precision,
            "range": np.array(self._range),
            "bins": self._bins.copy(),
            "counts": self._counts.copy(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the statistics. Raises: CorruptStateError."""
        bins, counts, ends = (take(state, name, np.ndarray) for name in ("bins", "counts", "range"))
        if (
            bins.dtype != np.int64
            or counts.dtype != np.int64
            or bins.shape != counts.shape
            or bins.ndim != 1
            or ends.shape != (2,)
        ):
            raise CorruptStateError(
                "a quantile sketch in the state of preprocessing has bins without counts; restore a state of this pipeline"
            )
        self.precision = take(state, "precision", int)
        self._bins, self._counts, self._range = bins.copy(), counts.copy(), (float(ends[0]), float(ends[1]))


def _joined(bins: Int64Array, counts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the bins with a precision lower by 1, in the same order."""
    halved = np.sign(bins) * (np.abs(bins) >> 1)
    starts = np.flatnonzero(np.diff(halved, prepend=halved[:1] - 1))
    return halved[starts], np.add.reduceat(counts, starts) if len(starts) else counts
