"""The middle of a set of samples. Samples are centred at the middle before distances are computed. The module imports torch for types only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

MIDDLE_ROWS: Final = 255
"""Number of rows from which the middle of a set is computed."""


def evenly_spaced(rows: torch.Tensor, number: int) -> torch.Tensor:
    """Select at most `number` rows at equal intervals. Args: rows: (n, d)."""
    return rows[:: -(-len(rows) // number)]


def middle(rows: torch.Tensor) -> torch.Tensor:
    """Return the median of each column, (d,), from at most `MIDDLE_ROWS` rows. Unlike a mean, a median is robust against outliers.

    Args: rows: (n, d), n ≥ 1.
    """
    return evenly_spaced(rows, MIDDLE_ROWS).double().median(0).values
