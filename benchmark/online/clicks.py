"""Stream of clicks like Criteo's: 13 numbers with missing values, and 26 categories whose vocabularies grow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

NUMBERS = tuple(f"i{number}" for number in range(1, 14))
CATEGORIES = tuple(f"c{number}" for number in range(1, 27))
_CARDINALITIES = np.geomspace(4, 2_000_000, len(CATEGORIES)).astype(np.int64)
"""Sizes of vocabularies in the published dataset: some columns have less than 30 values, others millions."""


@dataclass(frozen=True, slots=True)
class ClickStream:
    """Rows of one seed. Numbers are log-normal counts, missing in 0 to 45 % of rows by column as in Criteo; categories are 8 hexadecimal digits,
    drawn by Zipf's law (exponent 1.2) out of a range that grows with the stream, and missing in 3 % of rows."""

    num_rows: int
    seed: int = 0

    def batches(self, batch_size: int) -> Iterator[dict[str, pa.Array]]:
        """Yield Arrow columns by name; the last batch may be shorter."""
        generator = np.random.default_rng(self.seed)
        for start in range(0, self.num_rows, batch_size):
            size = min(batch_size, self.num_rows - start)
            columns = {name: _numbers(generator, at, size) for at, name in enumerate(NUMBERS)}
            grown = 0.5 + 0.5 * (start + size) / self.num_rows
            for name, cardinality in zip(CATEGORIES, _CARDINALITIES, strict=True):
                columns[name] = _categories(generator, max(int(cardinality * grown), 2), size)
            yield columns


def _numbers(generator: np.random.Generator, column: int, size: int) -> pa.Array:
    values = np.floor(generator.lognormal(column % 5, 1.5, size))
    return pa.array(values, mask=generator.random(size) < 0.15 * (column % 4))


def _categories(generator: np.random.Generator, cardinality: int, size: int) -> pa.Array:
    drawn = generator.zipf(1.2, size) % cardinality
    texts = [f"{value * 2654435761 % (1 << 32):08x}" for value in drawn.tolist()]
    return pa.array(texts, mask=generator.random(size) < 0.03)
