"""Check that a training takes the sparse gradients of a model's embeddings. Imports torch: for workers only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from modyn.config.base import Problem
from modyn.trainer_server.request.config import TrainingConfig

_DENSE: Final = "set model.config.sparse_gradients: false"


def sparse_gradient_problems(model: nn.Module, config: TrainingConfig, optimizers: Mapping[str, Optimizer]) -> Iterator[Problem]:
    """Yield an error for each group of parameters whose optimizer refuses the group's gradients, and for options that refuse sparse gradients.

    A small parameter with a sparse gradient is tried, because PyTorch checks only in a step what it takes. Args: model, optimizers: of `config`.
    """
    sparse = {
        id(module.weight): f"model.{name}"
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad
    }
    for i, (options, optimizer) in enumerate(zip(config.optimizers, optimizers.values(), strict=True)):
        for j, (given, group) in enumerate(zip(options.param_groups, optimizer.param_groups, strict=True)):
            path = f"training.optimizers.{i}.param_groups.{j}"
            names = [sparse[id(parameter)] for parameter in group["params"] if id(parameter) in sparse]
            if names and (why := _refusal(_stepping(type(optimizer), given.config))):
                message = f"{options.algorithm} does not take the sparse gradients of {names[0]}: {why}; use SGD or Adagrad without weight decay, or "
                yield Problem(path, f"{message}SparseAdam, or {_DENSE}")
            if isinstance(optimizer, torch.optim.SparseAdam) and len(names) < len(group["params"]):
                message = "SparseAdam takes only sparse gradients: name embeddings of a model with sparse_gradients: true here, and nothing else"
                yield Problem(path, message)
    if sparse and config.gradient_clip_norm is not None:
        norm = config.gradient_clip_norm
        if why := _refusal(lambda parameter: nn.utils.clip_grad_norm_([parameter], norm)):
            name = next(iter(sparse.values()))
            message = f"PyTorch does not clip the sparse gradients of {name} ({why}); remove it, or {_DENSE}"
            yield Problem("training.gradient_clip_norm", message)


def _stepping(kind: Callable[..., Any], options: Mapping[str, Any]) -> Callable[[nn.Parameter], object]:
    """Return a function that makes a step on a parameter with an optimizer."""
    return lambda parameter: kind([parameter], **options).step()


def _refusal(use: Callable[[nn.Parameter], object]) -> str:
    """Return the first line of the error of `use` on a parameter with a sparse gradient; empty: there is no error."""
    parameter = nn.Parameter(torch.zeros(2, 1, device="cpu"))
    try:
        # Without a choice of checks, PyTorch warns.
        with torch.sparse.check_sparse_tensor_invariants(False):  # type: ignore[no-untyped-call]
            parameter.grad = torch.eye(2, 1, device="cpu").to_sparse()
            use(parameter)
    except Exception as error:  # noqa: BLE001  (a class of a user may raise anything)
        return str(error).partition("\n")[0]
    return ""
