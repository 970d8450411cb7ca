"""Check that the right samples came, each once, with their own labels. It is made in the run that does not count.

A sample's number stands in its data or in its label: feature 0 of a record (`records`), the label of an image (`images`) by tens. Peers
import this module in their own environment.
"""

from __future__ import annotations

from typing import Any

NUMBERS = 2**23
"""Feature 0 of record i is i % NUMBERS, which a float32 holds exactly."""
_LABELS_OF_RECORDS, _LABELS_OF_IMAGES = 2, 10
_TOO_FEW = 20
"""Samples that may be in stored order by chance after shuffling."""


class Contents:
    """Samples of one epoch, batch by batch."""

    def __init__(self) -> None:
        self._numbers: list[Any] = []
        self._labels: list[Any] = []

    def add(self, tensors: list[Any]) -> None:
        """Add a batch: its data, then its labels. They are copied, since a buffer may be reused."""
        import numpy as np

        data, labels = tensors
        if data.ndim == 2:
            self._numbers.append(np.asarray(data[:, 0]).astype(np.int64))
        self._labels.append(np.asarray(labels).astype(np.int64).reshape(-1))

    def check(self, num_samples: int, *, shuffled: bool) -> None:
        """Raise unless samples 0 to `num_samples` came, each once, in another order if shuffled."""
        import numpy as np

        labels = np.concatenate(self._labels)
        if self._numbers:
            modulus, found = NUMBERS, np.concatenate(self._numbers)
            if not np.array_equal(labels, found % _LABELS_OF_RECORDS):
                raise RuntimeError("labels do not belong to their samples")
        else:
            modulus, found = _LABELS_OF_IMAGES, labels
        expected = np.arange(num_samples) % modulus
        if not np.array_equal(np.sort(found), np.sort(expected)):
            raise RuntimeError(f"{num_samples:,} samples were expected, each once; others came")
        if shuffled and num_samples > _TOO_FEW and np.array_equal(found, expected):
            raise RuntimeError("samples came in stored order; they were to be shuffled")
