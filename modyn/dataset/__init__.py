"""From (run, trigger) to batches of tensors: keys from the selector, payloads from storage, the user's functions in between.

Importing this package is cheap; its names are imported, with torch, when they are first used.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modyn.dataset.batch import Batch, on_device
    from modyn.dataset.key_loader import load_keys
    from modyn.dataset.loader import BatchLoader, OnlineDataset
    from modyn.dataset.order.plan import BatchPosition

__all__ = ["Batch", "BatchLoader", "BatchPosition", "OnlineDataset", "load_keys", "on_device"]

_HOMES = {
    "Batch": "batch.Batch",
    "BatchLoader": "loader.BatchLoader",
    "OnlineDataset": "loader.OnlineDataset",
    "BatchPosition": "order.plan.BatchPosition",
    "load_keys": "key_loader.load_keys",
    "on_device": "batch.on_device",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name in _HOMES:
        module, _, attribute = _HOMES[name].rpartition(".")
        return getattr(import_module(f"{__name__}.{module}"), attribute)
    if name == "serve_keys":
        warnings.warn("modyn.dataset.serve_keys is now load_keys, and will be removed", DeprecationWarning, stacklevel=2)
        return import_module(f"{__name__}.key_loader").load_keys
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
