"""Seeds of a training, and the state of all global random generators. Imports torch: for workers only."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed every global random generator. Args: seed: 63 bits."""
    # Without an accelerator, `torch.manual_seed` records a call with its stack for each kind of accelerator, which takes 0.5 ms.
    (torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed)(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def derived_seed(seed: int, trigger_id: int, purpose: int) -> int:
    """Return a seed of 63 bits that depends only on the run's `seed`, the trigger and the number of a `purpose`."""
    high, low = np.random.SeedSequence([seed, trigger_id, purpose]).generate_state(2, np.uint32).tolist()
    return (int(high) << 31) | (int(low) >> 1)


def random_state() -> dict[str, Any]:
    """Return the state of every global random generator."""
    version, words, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        # Only the process's own GPU: other GPUs are not used, and may be missing where the training resumes.
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,  # type: ignore[no-untyped-call]
        "python": random.getstate(),
        "numpy": (str(version), torch.from_numpy(np.asarray(words, np.int64)), int(position), int(has_gauss), float(gauss)),
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Set every global random generator to a state of `random_state`."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, numpy_words, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, numpy_words.numpy().astype(np.uint32), position, has_gauss, cached))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore the global random generators after the block."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)
