"""A parser that draws by names of its module, which do not say so."""

from __future__ import annotations

import random as chance

import numpy as np
import torch

GENERATOR = np.random.default_rng()


def parse(data: memoryview) -> torch.Tensor:
    """The first number, and something drawn."""
    drawn = GENERATOR.integers(2) + chance.choice([0, 1])
    return torch.frombuffer(bytearray(data), dtype=torch.int64)[:1] + 0 * int(drawn)
