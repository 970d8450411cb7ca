"""What the data path yields: whole batches of tensors, and the place in the stream at which one stands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

Data = torch.Tensor | tuple[torch.Tensor, ...] | dict[str, torch.Tensor]
"""A batch of model inputs: one tensor (n, …), or several by position or by name."""


def map_tensors(data: Data, function: Any) -> Data:
    """`function` applied to each tensor of `data`."""
    if isinstance(data, torch.Tensor):
        mapped: torch.Tensor = function(data)
        return mapped
    if isinstance(data, tuple):
        return tuple(function(part) for part in data)
    return {name: function(part) for name, part in data.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """n samples. keys: int64 (n,). data: n rows. labels: n rows. weights: float32 (n,).

    epoch and index (from 0, within the epoch) say which batch of the plan it is. n is the batch size, except for the last batch of an
    epoch and where samples were deleted after they had been selected.
    """

    keys: torch.Tensor
    data: Data
    labels: torch.Tensor
    weights: torch.Tensor
    epoch: int = 0
    index: int = 0

    def __len__(self) -> int:
        return len(self.keys)

    def to(self, device: torch.device | str, non_blocking: bool = True) -> Batch:
        """The same batch with data, labels and weights on `device`; keys stay where they are."""

        def move(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        return replace(self, data=map_tensors(self.data, move), labels=move(self.labels), weights=move(self.weights))

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory, from which copies to a GPU need not be waited for."""
        return replace(
            self,
            data=map_tensors(self.data, torch.Tensor.pin_memory),
            labels=self.labels.pin_memory(),
            weights=self.weights.pin_memory(),
        )


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """`batch` batches of epoch `epoch` have been consumed, and all epochs before it."""

    epoch: int = 0
    batch: int = 0

    @staticmethod
    def after(batch: Batch) -> Position:
        """The position once `batch` has been consumed."""
        return Position(batch.epoch, batch.index + 1)
