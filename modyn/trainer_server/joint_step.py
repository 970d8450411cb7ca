"""The step of all optimizers of a training as one: unscaled, clipped, and made by all of them or by none. For workers only: imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class JointStep:
    """Steps several optimizers together. To torch.amp.GradScaler it looks like one optimizer with the groups of all.

    So an infinite gradient of any parameter keeps all of them from stepping, and an optimizer whose parameters have no gradient is not asked
    for one. Where all are fused, they skip such a step on the device, and nothing is read from it; otherwise one number is, once a step.
    """

    grad_scale: Tensor | None
    found_inf: Tensor
    """Set by the scaler around `step`, if all optimizers are fused."""

    def __init__(self, optimizers: Mapping[str, Optimizer], scaler: torch.amp.GradScaler, clip_norm: float | None = None) -> None:
        """Args: optimizers: by name, stepped in this order. scaler: also where nothing is scaled. clip_norm: most that the norm of all
        gradients together may be; None: not clipped.
        """
        self._optimizers = list(optimizers.values())
        self._scaler = scaler
        self._clip_norm = clip_norm
        self._step_supports_amp_scaling = all(getattr(o, "_step_supports_amp_scaling", False) for o in self._optimizers)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all optimizers, as they are now: loading a state replaces them."""
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    def run(self) -> None:
        """Make one step with the gradients as they are, and forget these."""
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        if any(parameter.grad is not None for parameter in parameters):
            as_optimizer = cast("Optimizer", self)
            if self._clip_norm is not None:
                self._scaler.unscale_(as_optimizer)
                nn.utils.clip_grad_norm_(parameters, self._clip_norm)
            self._scaler.step(as_optimizer)
            self._scaler.update()
        for parameter in parameters:  # not by zero_grad: that of NVIDIA Apex takes no `set_to_none`
            parameter.grad = None

    def step(self) -> None:
        """Step each optimizer. Called by the scaler, unless gradients are infinite and not all optimizers see that by themselves."""
        scaled = self._scaler.is_enabled() and self._step_supports_amp_scaling
        for optimizer in self._optimizers:
            if scaled:
                optimizer.grad_scale, optimizer.found_inf = self.grad_scale, self.found_inf  # type: ignore[attr-defined]
            optimizer.step()
            if scaled:
                del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
