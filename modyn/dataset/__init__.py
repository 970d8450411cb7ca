"""Load a trigger set as batches of tensors: the selector gives the keys, storage gives the payloads, and the user's functions decode them.

Importing this package is cheap. The first use of a name of the package imports this name, and torch.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modyn.dataset.batch import Batch, on_device
    from modyn.dataset.key_loader import load_keys
    from modyn.dataset.loader import BatchLoader, OnlineDataset
    from modyn.dataset.order.batch_plan import BatchPosition

__all__ = ["Batch", "BatchLoader", "BatchPosition", "OnlineDataset", "load_keys", "on_device"]

_HOMES = {
    "Batch": "batch.Batch",
    "BatchLoader": "loader.BatchLoader",
    "OnlineDataset": "loader.OnlineDataset",
    "BatchPosition": "order.batch_plan.BatchPosition",
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
