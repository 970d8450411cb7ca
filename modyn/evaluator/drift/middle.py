"""A point among the samples of a set, around which distances are computed. Imports torch only for types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

MIDDLE_ROWS: Final = 255
"""Rows that the middle of a set is computed of."""


def evenly_spaced(rows: torch.Tensor, number: int) -> torch.Tensor:
    """At most so many of the rows. Args: rows: (n, d)."""
    return rows[:: -(-len(rows) // number)]


def middle(rows: torch.Tensor) -> torch.Tensor:
    """The median of each column, (d,), of at most `MIDDLE_ROWS` rows. Unlike a mean, it stays among the samples where some lie far out.

    Args: rows: (n, d), n ≥ 1.
    """
    return evenly_spaced(rows, MIDDLE_ROWS).double().median(0).values
