"""The loss of a batch, with and without weights of samples. Imports torch: for workers only."""

from __future__ import annotations

import inspect
from typing import Any, Final

import torch
from torch import Tensor, nn

from modyn.errors import ConfigError
from modyn.registry import nearest
from modyn.trainer_server.config import CriterionConfig

_PATH: Final = "training.optimization_criterion"

_ELEMENTWISE: Final = frozenset(
    {
        "HingeEmbeddingLoss",
        "HuberLoss",
        "KLDivLoss",
        "L1Loss",
        "MSELoss",
        "MultiLabelSoftMarginLoss",
        "PoissonNLLLoss",
        "SmoothL1Loss",
        "SoftMarginLoss",
    }
)
"""Losses of torch.nn that compare element by element and would spread (n, 1) against (n,) to n × n."""


class Criterion:
    """One number for a batch: what the class of torch.nn gives; with weights, sample i counts wᵢ / w̄ times.

    w̄ is the mean weight of the whole trigger set: so weights keep their ratio across batches, the mean over an epoch estimates the weighted
    mean without bias, and equal weights, whatever their size, are no weights. What divides the sum of losses is what the class divides by:
    elements, of CrossEntropyLoss and NLLLoss those that are not ignored, each with the weight of its class; with reduction `sum` nothing.

    Args: mean_weight: w̄; None: weights do not count. Raises ConfigError: there is no such loss, or it refuses its options.
    """

    def __init__(self, config: CriterionConfig, mean_weight: float | None = None) -> None:
        self._name = config.name
        self._mean_weight = mean_weight
        self.sums = config.config.get("reduction", "mean") == "sum"
        """Whether batches add up: the loss of two is the sum, not the mean, of the loss of each."""
        kind = getattr(nn, config.name, None)
        if not (inspect.isclass(kind) and issubclass(kind, nn.Module) and config.name.endswith("Loss")):
            losses = [name for name in dir(nn) if name.endswith("Loss")]
            raise ConfigError(f"{_PATH}.name: torch.nn has no loss '{config.name}'{nearest(config.name, losses)}")
        options = dict(config.config)
        for name in ("weight", "pos_weight"):  # class weights
            if isinstance(options.get(name), list):
                options[name] = torch.tensor(options[name], dtype=torch.float32)
        if mean_weight is not None:
            options["reduction"] = "none"
        try:
            self._module: nn.Module = kind(**options)
        except Exception as error:
            allowed = ", ".join(inspect.signature(kind).parameters)
            raise ConfigError(f"{_PATH}.config: {config.name} refuses its options: {error}. It takes: {allowed}") from error
        self._has_tensors = next(self._module.buffers(), None) is not None or next(self._module.parameters(), None) is not None

    def __call__(self, output: Any, labels: Tensor, weights: Tensor) -> Tensor:
        """The loss. Args: output: the model's. labels: (n, …). weights: (n,).

        Raises: ValueError: output and labels differ in shape where each element has its label. ConfigError: the class gives no loss a
        sample, which weights need.
        """
        if self._name in _ELEMENTWISE and isinstance(output, Tensor) and output.shape != labels.shape:
            raise ValueError(
                f"{self._name} compares element by element, but the model's output has shape {list(output.shape)} and the labels have "
                f"{list(labels.shape)}: bring labels into the output's shape with data.label_transformer_function, or change the model"
            )
        if self._has_tensors:
            self._module.to(labels.device)
        losses: Tensor = self._module(output, labels)
        if self._mean_weight is not None:
            return self._weighted(losses, labels, weights / self._mean_weight)
        if self.sums or labels.is_floating_point() or not isinstance(self._module, nn.CrossEntropyLoss | nn.NLLLoss):
            return losses
        # The mean over no label would be 0 / 0.
        return torch.where((labels == self._module.ignore_index).all(), losses.new_zeros(()), losses)

    def _weighted(self, losses: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        if losses.dim() == 0 or len(losses) != len(weights):
            raise ConfigError(
                f"{_PATH}.name: {self._name} gives no loss per sample, which selection_strategy.uses_weights needs; "
                "choose another loss or set uses_weights: false"
            )
        summed = torch.dot(losses.flatten(1).sum(1) if losses.dim() > 1 else losses, weights.to(losses.dtype))
        return summed if self.sums else summed / self._divisor(losses, labels)

    def _divisor(self, losses: Tensor, labels: Tensor) -> Tensor | int:
        """What the class itself divides the sum by. Stays on the device: reading it would wait."""
        if not isinstance(self._module, nn.CrossEntropyLoss | nn.NLLLoss) or labels.is_floating_point():
            return losses.numel()
        counted = labels != self._module.ignore_index
        class_weights = self._module.weight
        counts = counted if class_weights is None else class_weights[labels.where(counted, 0)] * counted
        return counts.sum(dtype=losses.dtype).clamp_min(torch.finfo(losses.dtype).tiny)  # all ignored: a loss of 0
