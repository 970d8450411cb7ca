"""From (run, trigger) to batches of tensors: keys from the selector, payloads from storage, the user's functions in between.

Importing this package is cheap; what it offers is imported, with torch, when it is first used:

- `OnlineDataset(run, trigger)`: the samples of a trigger set, from a notebook or a script
- `BatchLoader`: a dataset with several workers
- `serve_keys(keys, data)`: any list of keys
- `Batch`, and `Position`: which place in the stream `seek` goes to
- `on_device(batches, device)`: batches copied to a GPU one ahead
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modyn.dataset.batch import Batch, Position
    from modyn.dataset.device import on_device
    from modyn.dataset.given_keys import serve_keys
    from modyn.dataset.loader import BatchLoader
    from modyn.dataset.online_dataset import OnlineDataset

__all__ = ["Batch", "BatchLoader", "OnlineDataset", "Position", "on_device", "serve_keys"]

_HOMES = {
    "Batch": "batch",
    "BatchLoader": "loader",
    "OnlineDataset": "online_dataset",
    "Position": "batch",
    "on_device": "device",
    "serve_keys": "given_keys",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
