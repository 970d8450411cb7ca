"""The batches that the training loop sees: cut to the bound on samples, and without batches of one where BatchNorm could not use them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from modyn.dataset.batch import Batch, map_tensors
from modyn.models.calls import Data
from modyn.trainer_server.plan import TrainingPlan


def has_batch_norm(model: nn.Module) -> bool:
    """Whether any module computes statistics over a batch while it is trained."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def bounded(batches: Iterator[Batch], num_samples: int) -> Iterator[Batch]:
    """The batches, the last of them cut so that they hold `num_samples` samples in all."""
    left = num_samples
    while left > 0 and (batch := next(batches, None)) is not None:
        yield batch if len(batch) <= left else _first(batch, left)
        left -= len(batch)


def joined(batches: Iterator[Batch], plan: TrainingPlan) -> Iterator[Batch]:
    """The batches; one with a single sample, be it the rest of an epoch or what deletions left, is part of the batch before it in its epoch,
    else of the one behind it. Looks one batch ahead."""
    held: Batch | None = None
    for batch in batches:
        if held is not None and batch.epoch == held.epoch and 1 in (len(batch), len(held)):
            # The index says where a resumed training goes on, so never before these samples; the plan has none for a last batch of one.
            held = _concatenated(held, batch, min(batch.index, plan.batches_in(batch.epoch) - 1))
            continue
        if held is not None:
            yield held
        held = batch
    if held is not None:
        yield held


def _first(batch: Batch, count: int) -> Batch:
    data = map_tensors(batch.data, lambda tensor: tensor[:count])
    return replace(batch, keys=batch.keys[:count], data=data, labels=batch.labels[:count], weights=batch.weights[:count])


def _concatenated(a: Batch, b: Batch, index: int) -> Batch:
    keys, labels, weights = (torch.cat(pair) for pair in ((a.keys, b.keys), (a.labels, b.labels), (a.weights, b.weights)))
    return Batch(keys, _both(a.data, b.data), labels, weights, a.epoch, index)


def _both(a: Data, b: Data) -> Data:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return tuple(torch.cat(pair) for pair in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return {name: torch.cat((part, b[name])) for name, part in a.items()}
    assert isinstance(a, torch.Tensor)
    assert isinstance(b, torch.Tensor)
    return torch.cat((a, b))
