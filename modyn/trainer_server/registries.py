"""Optimizers and schedulers that packages of users bring. Those of PyTorch are named by their class and are not registered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from modyn.registry import Registry

OPTIMIZERS: Registry[Callable[..., Any]] = Registry(group="modyn.optimizers", kind="optimizer")
"""Called with the parameter groups, a list of {params, **options}; returns a torch.optim.Optimizer."""

SCHEDULERS: Registry[Callable[..., Any]] = Registry(group="modyn.schedulers", kind="learning rate scheduler")
"""Called with (optimizer, **config); returns an object with step(), state_dict() and load_state_dict()."""
