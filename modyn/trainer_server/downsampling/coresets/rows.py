"""Check features, and scale them to lengths at which float32 is precise enough."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from modyn.errors import InvalidArgumentError
from modyn.trainer_server.downsampling.coresets import FloatArray

Rows = npt.NDArray[np.float32] | npt.NDArray[np.float64]

BLOCK_VALUES: Final = 2**21
"""Number of values that are computed together: 8 MiB of float32."""
FLOAT32_LENGTH: Final = 30.0
"""Largest length of a row, in typical lengths, for which products are computed in float32. Squared distances are then exact to about 1e-4."""


def blocks(num_rows: int, row_values: int) -> Iterator[slice]:
    """Yield slices of at most BLOCK_VALUES values that together cover [0, num_rows)."""
    step = max(16, BLOCK_VALUES // max(1, row_values))
    for first in range(0, num_rows, step):
        yield slice(first, min(first + step, num_rows))


def check_features(features: FloatArray, among: npt.NDArray[np.int64] | None = None) -> None:
    """Raise InvalidArgumentError unless features are an (n, d) array of finite floats. Args: among: positions to check; None for all positions."""
    if features.ndim != 2 or features.dtype.kind != "f":
        raise InvalidArgumentError(
            f"features are {features.dtype} of shape {features.shape}; they must be floats of shape (n, d)"
        )
    count, width = features.shape
    for part in blocks(count if among is None else len(among), width):
        finite = np.isfinite(features[part if among is None else among[part]]).all(1)
        if not finite.all():
            position = part.start + int(np.argmin(finite))
            position = position if among is None else int(among[position])
            raise InvalidArgumentError(f"the features of candidate {position} are not finite")


def unit_rows(features: FloatArray) -> npt.NDArray[np.float32]:
    """Divide features by their lengths; rows of length 0 stay unchanged. Returns: (n, d)."""
    rows = np.empty(features.shape, np.float32)
    for part in blocks(*features.shape):
        values = features[part].astype(np.float64)
        largest = np.abs(values).max(1, initial=0.0, keepdims=True)
        values /= np.where(largest > 0, largest, 1)  # Squares of the scaled values neither underflow nor overflow.
        lengths = np.sqrt(np.einsum("ij,ij->i", values, values))[:, None]
        rows[part] = values / np.where(lengths > 0, lengths, 1)
    return rows


def centred_rows(features: FloatArray) -> tuple[Rows, float]:
    """Center features on their mean and scale them by their typical length. The result is float64 for float64 features or for very long rows.

    Returns: rows: (n, d). unit: length in units of the features that corresponds to 1.
    """
    mean = features.mean(0, dtype=np.float64) if len(features) else np.zeros(features.shape[1])
    lengths = np.empty(len(features))
    for part in blocks(*features.shape):
        values = features[part] - mean
        lengths[part] = np.sqrt(np.einsum("ij,ij->i", values, values))
    longest = float(lengths.max(initial=0.0))
    unit = float(np.median(lengths)) if longest else 1.0
    # If some rows are much longer than most, float32 would lose the digits in which most rows differ.
    precise = features.dtype == np.float64 or longest > FLOAT32_LENGTH * unit
    # The median length is 0 if most rows equal the mean.
    unit = unit or longest
    rows: Rows = np.empty(features.shape, np.float64) if precise else np.empty(features.shape, np.float32)
    for part in blocks(*features.shape):
        rows[part] = (features[part] - mean) / unit
    return rows, unit


def kernel_rows(features: FloatArray) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    """Return rows whose products are the kernel (1 + cos) / 2 of the features; the kernel is 1/2 for features of length 0.

    Returns: rows: (n, d + 1). diagonal: (n,), the product of each row with itself: 1, or 1/2 for features of length 0.
    """
    rows = unit_rows(features)
    diagonal = np.where(rows.any(1), 1.0, 0.5)
    return np.hstack([rows, np.ones((len(rows), 1), np.float32)]) * np.float32(np.sqrt(0.5)), diagonal
