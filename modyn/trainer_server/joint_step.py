"""The step of all optimizers of a training as one: unscaled, clipped, and made by all of them or by none. For workers only: imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        self._skipped: Tensor | None = None
        """Steps that fused optimizers have skipped and `take_skipped` has not read, on the device."""
        self._gradient = _AnyGradient()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all optimizers, as they are now: loading a state replaces them."""
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    @property
    def has_gradient(self) -> bool:
        """Whether any gradient so far was not 0. Waits for the device, unless that is known."""
        return self._gradient.is_found()

    def run(self) -> bool:
        """Make one step with the gradients as they are, and forget these.

        Returns: False if it was skipped: no parameter has a gradient, or one is infinite under loss scaling. Where all optimizers are fused, only
        the device knows the latter: then True, and `take_skipped` says so later.
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
        for parameter in parameters:  # not by zero_grad: that of NVIDIA Apex takes no `set_to_none`
            parameter.grad = None
        return is_made

    def step(self) -> bool:
        """Step each optimizer. Called by the scaler, unless gradients are infinite and not all optimizers see that by themselves.

        Returns: True, which the scaler passes on.
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
        """How many steps were skipped of those for which `run` has returned True since the last call. Waits for the device if any was fused."""
        skipped, self._skipped = self._skipped, None
        return 0 if skipped is None else int(skipped)


class _AnyGradient:
    """Looks at the gradients of each step until one is not 0: in a training that learns, of the first step only."""

    def __init__(self) -> None:
        self._found = False
        self._looks = 0
        self._any: Tensor | None = None
        """Whether one of those that were looked at is not 0, on the device."""

    def look(self, gradients: Sequence[Tensor]) -> None:
        """Look at the gradients of a step. What the device finds is read after 1, 2, 4, 8, … steps."""
        if self._found:
            return
        values = [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]
        is_any = torch.stack([value.any().to(gradients[0].device) for value in values]).any()
        self._any = is_any if self._any is None else self._any | is_any
        self._looks += 1
        if self._looks & (self._looks - 1) == 0:
            self.is_found()

    def is_found(self) -> bool:
        """Whether one was not 0. Waits for the device, unless that is known."""
        if not self._found and self._any is not None:
            self._found = bool(self._any)
        return self._found
