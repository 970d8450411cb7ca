"""Answers with an array, in a process that may open nothing any more."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import numpy as np


def answer(size: int) -> Iterator[object]:
    """Yield the numbers below `size`."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    yield np.arange(size)
