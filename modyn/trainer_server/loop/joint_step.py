"""Make one step of all optimizers of a training together: unscale and clip the gradients, and step all optimizers or no optimizer. Imports torch: for
workers only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class JointStep:
    """Steps several optimizers together. For torch.amp.GradScaler, this object is one optimizer with all parameter groups.

    If the gradient of any parameter is infinite, no optimizer steps. An optimizer without gradients is allowed. If all optimizers are fused, the
    device itself skips a step with infinite gradients, and the host reads nothing. Otherwise the host reads one number per step.
    """

    grad_scale: Tensor | None
    found_inf: Tensor
    """Above 0 if a gradient is infinite. The scaler sets this value before `step` if all optimizers are fused."""

    def __init__(self, optimizers: Mapping[str, Optimizer], scaler: torch.amp.GradScaler, clip_norm: float | None = None) -> None:
        """Args: optimizers: optimizers by name, in the order of their steps. scaler: required even without loss scaling. clip_norm: limit for the
        norm of all gradients together, or None if gradients are not clipped.
        """
        self._optimizers = list(optimizers.values())
        self._scaler = scaler
        self._clip_norm = clip_norm
        self._step_supports_amp_scaling = all(getattr(o, "_step_supports_amp_scaling", False) for o in self._optimizers)
        self._skipped: Tensor | None = None
        """Number of skipped steps of fused optimizers since the last `take_skipped`, on the device."""
        self._gradient = _AnyGradient()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The current groups of all optimizers. The groups are collected at each use, because loading a state replaces groups."""
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    @property
    def has_gradient(self) -> bool:
        """Whether any gradient so far was not 0. Waits for the device, unless a nonzero gradient is already known."""
        return self._gradient.is_found()

    def run(self) -> bool:
        """Make one step with the current gradients, and drop the gradients.

        Returns: False if the step was skipped: no parameter has a gradient, or a gradient is infinite under loss scaling. If all optimizers are
        fused, only the device knows of infinite gradients: `run` then returns True, and `take_skipped` counts the step later.
        """
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        is_made = False
        if gradients := [parameter.grad for parameter in parameters if parameter.grad is not None]:
            self._gradient.look(gradients)
            as_optimizer = cast("Optimizer", self)
            if self._clip_norm is not None:
                self._scaler.unscale_(as_optimizer)
                nn.utils.clip_grad_norm_(parameters, self._clip_norm)
            is_made = self._scaler.step(as_optimizer) is not None
            self._scaler.update()
        for parameter in parameters:  # NVIDIA Apex has a zero_grad without `set_to_none`
            parameter.grad = None
        return is_made

    def step(self) -> bool:
        """Step each optimizer. The scaler calls this method if gradients are finite, or if all optimizers check the gradients themselves.

        Returns: always True. The scaler passes this value on to `run`.
        """
        scaled = self._scaler.is_enabled() and self._step_supports_amp_scaling
        for optimizer in self._optimizers:
            if scaled:
                optimizer.grad_scale, optimizer.found_inf = self.grad_scale, self.found_inf  # type: ignore[attr-defined]
            optimizer.step()
            if scaled:
                del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
        if scaled:
            skipped = self.found_inf.clamp(max=1)
            self._skipped = skipped if self._skipped is None else self._skipped + skipped
        return True

    def take_skipped(self) -> int:
        """Return the number of steps since the last call that the device skipped although `run` returned True. Waits for the device if a fused step
        was made.
        """
        skipped, self._skipped = self._skipped, None
        return 0 if skipped is None else int(skipped)


class _AnyGradient:
    """Checks the gradients of each step until a gradient is not 0. In a training that learns, the first step already has a nonzero gradient."""

    def __init__(self) -> None:
        self._found = False
        self._looks = 0
        self._any: Tensor | None = None
        """Whether any gradient so far was not 0; a tensor on the device."""

    def look(self, gradients: Sequence[Tensor]) -> None:
        """Check the gradients of a step. The device's result is read after 1, 2, 4, 8, … steps."""
        if self._found:
            return
        values = [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]
        is_any = torch.stack([value.any().to(gradients[0].device) for value in values]).any()
        self._any = is_any if self._any is None else self._any | is_any
        self._looks += 1
        # True for powers of two.
        if self._looks & (self._looks - 1) == 0:
            self.is_found()

    def is_found(self) -> bool:
        """Return whether a gradient was not 0. Waits for the device, unless a nonzero gradient is already known."""
        if not self._found and self._any is not None:
            self._found = bool(self._any)
        return self._found
