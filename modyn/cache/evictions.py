"""How many samples were evicted from a tier in shared memory: a file beside its namespaces, so that the count outlives those that are dropped."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

EVICTIONS: Final = "evictions"
"""The name of the file."""
_COUNTS: Final = struct.Struct("<QQ")


class Evictions(NamedTuple):
    """Since the tier was made or cleared."""

    num_samples: int = 0
    num_bytes: int = 0
    """That they used."""


def read_evictions(tier: Path) -> Evictions:
    """Return what was counted. Args: tier: the folder of the tier. A file that is missing or damaged counts nothing."""
    try:
        return Evictions(*_COUNTS.unpack((tier / EVICTIONS).read_bytes()))
    except (OSError, struct.error):
        return Evictions()


def count_evictions(tier: Path, num_samples: int, num_bytes: int) -> None:
    """Add to what was counted, under the lock of the tier. Raises OSError: it cannot be written."""
    if not num_samples:
        return
    before = read_evictions(tier)
    file = os.open(tier / EVICTIONS, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(file, _COUNTS.pack(before.num_samples + num_samples, before.num_bytes + num_bytes), 0)
    finally:
        os.close(file)
