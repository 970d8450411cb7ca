"""The loss of a batch, with and without weights of samples. Imports torch: for workers only."""

from __future__ import annotations

import inspect
from functools import cached_property
from itertools import chain
from typing import Any, Final

import torch
from torch import Tensor, nn

from modyn.errors import ConfigError
from modyn.registry import nearest
from modyn.trainer_server.request.config import CriterionConfig

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
"""Losses of torch.nn that compare element by element, and would broadcast (n, 1) and (n,) to (n, n)."""


class Criterion:
    """The loss of a batch as one number, as the class of torch.nn computes it; weights multiply the loss of sample i by wᵢ / w̄.

    w̄ is the mean weight of the whole trigger set. Weights therefore keep their ratio across batches, the mean over an epoch estimates the weighted
    mean without bias, and equal weights of any size change nothing. The sum of losses is divided by the same number as in the class of torch.nn: by
    the number of elements, or, for CrossEntropyLoss and NLLLoss, by the sum of the class weights of the labels that are not ignored. With reduction
    `sum`, the sum is not divided.

    Args: mean_weight: w̄; None if the weights of the trigger set are not used. sampled: whether downsampling draws the samples. The weights of drawn
    samples already include `counts` and the division by the mean of `counts` over the candidates. The loss is therefore divided only by the number of
    samples. Raises ConfigError: the loss does not exist, or rejects its options.
    """

    def __init__(self, config: CriterionConfig, mean_weight: float | None = None, *, sampled: bool = False) -> None:
        self._config = config
        self._name = config.name
        self._given_weight = mean_weight
        self._mean_weight = 1.0 if sampled and mean_weight is None else mean_weight
        self._sampled = sampled
        self.sums = config.config.get("reduction", "mean") == "sum"
        """Whether losses are summed: the loss of two batches together is the sum of their losses, not the mean."""
        kind = getattr(nn, config.name, None)
        if not (inspect.isclass(kind) and issubclass(kind, nn.Module) and config.name.endswith("Loss")):
            losses = [name for name in dir(nn) if name.endswith("Loss")]
            raise ConfigError(f"{_PATH}.name: torch.nn has no loss '{config.name}'{nearest(config.name, losses)}")
        self._kind = kind
        self._options = dict(config.config)
        for name in ("weight", "pos_weight"):  # class weights
            if isinstance(self._options.get(name), list):
                self._options[name] = torch.tensor(self._options[name], dtype=torch.float32)
        self._module = self._made() if self._mean_weight is None else self._unreduced

    @cached_property
    def not_sampled(self) -> Criterion:
        """Return the loss for batches that are not sampled, such as the validation set."""
        return Criterion(self._config, self._given_weight) if self._sampled else self

    @cached_property
    def _unreduced(self) -> nn.Module:
        return self._made(reduction="none")

    def _made(self, **options: Any) -> nn.Module:
        try:
            module: nn.Module = self._kind(**{**self._options, **options})
        except Exception as error:
            allowed = ", ".join(inspect.signature(self._kind).parameters)
            raise ConfigError(f"{_PATH}.config: {self._name} refuses its options: {error}. It takes: {allowed}") from error
        return module

    def check_arguments(self) -> None:
        """Check that the class takes an output and labels, and requires no other argument. Raises ConfigError."""
        taken = list(inspect.signature(self._kind.forward).parameters.values())[1:]
        needed = [parameter.name for parameter in taken if parameter.default is inspect.Parameter.empty]
        if len(needed) != 2:
            raise ConfigError(
                f"{_PATH}.name: {self._name} is called with {', '.join(needed)}, but a training has the output of the model and labels; choose "
                "another loss"
            )

    def check_per_sample(self, what: str) -> None:
        """Check that the class has an option for a loss per sample. Args: what: the feature that needs the option. Raises ConfigError."""
        self.check_arguments()
        if "reduction" not in inspect.signature(self._kind).parameters:
            raise self._no_samples(what, "choose another loss, or a selection that asks for nothing")

    def __call__(self, output: Any, labels: Tensor, weights: Tensor) -> Tensor:
        """Compute the loss. Args: output: output of the model. labels: (n, …). weights: (n,).

        Raises: ValueError: output and labels differ in shape, in a loss with one label per element. ConfigError: the class has no loss per
        sample, which weights need.
        """
        losses = self._losses(self._module, output, labels)
        if self._mean_weight is not None:
            return self._weighted(losses, labels, weights / self._mean_weight)
        if self.sums or not self._ignores(labels):
            return losses
        # The mean over no label, or over labels of total weight 0, would be 0 / 0.
        return torch.where(self._counted(labels).any(), losses, losses.new_zeros(()))

    def per_sample(self, output: Any, labels: Tensor) -> Tensor:
        """Compute the loss of each sample, (n,): the sum over its elements, 0 for an ignored label. Arguments and errors: see `__call__`."""
        losses = self._losses(self._unreduced, output, labels)
        if losses.dim() == 0 or len(losses) != len(labels):
            raise self._no_samples("downsampling by losses or gradients", "choose another loss, or RS2")
        return losses.flatten(1).sum(1) if losses.dim() > 1 else losses

    def counts(self, labels: Tensor) -> Tensor:
        """Return the contribution of each sample to the divisor of the sum of losses: float32 (n,); 1 if all are equal, 0 for an ignored label."""
        if not self._ignores(labels):
            return labels.new_ones(len(labels), dtype=torch.float32)
        counts = self._counted(labels).float()
        return counts.flatten(1).sum(1) if counts.dim() > 1 else counts

    @property
    def ignore_index(self) -> int | None:
        """The class that the loss ignores, or None if the loss ignores no class."""
        found: int | None = getattr(self._module, "ignore_index", None)
        return found

    def num_ignored(self, labels: Tensor) -> Tensor | None:
        """Count the ignored labels: a scalar on the device of `labels`, or None if the loss ignores no class."""
        return torch.eq(labels, self.ignore_index or 0).sum() if self._ignores(labels) else None

    def classes(self, labels: Tensor) -> Tensor | None:
        """Return the class of each sample, int64 (n,), or None if labels are not classes, or each sample has several classes."""
        if self._name in ("BCELoss", "BCEWithLogitsLoss"):
            return labels.reshape(-1).round().long() if labels.numel() == len(labels) else None
        if self._name not in ("CrossEntropyLoss", "NLLLoss", "MultiMarginLoss"):
            return None
        if labels.is_floating_point():
            return labels.argmax(1) if labels.dim() == 2 else None
        return labels.long() if labels.dim() == 1 else None

    def probabilities(self, output: Tensor) -> Tensor:
        """Return the class probabilities for an output of the model: float32 (n, c). An output with one value per sample gives (n, 2).

        Raises: ConfigError: the loss has no probabilities, or has several labels per sample.
        """
        output = output.float()
        if self._name in ("CrossEntropyLoss", "NLLLoss") and output.dim() == 2:
            return output.softmax(1) if self._name == "CrossEntropyLoss" else output.exp()
        if self._name in ("BCELoss", "BCEWithLogitsLoss") and output.numel() == len(output):
            one = output.reshape(-1) if self._name == "BCELoss" else output.reshape(-1).sigmoid()
            return torch.stack((1 - one, one), 1)
        raise ConfigError(
            f"selection_strategy.downsampling_config.strategy: probabilities of classes are needed, but {self._name} over an output of shape "
            f"{list(output.shape)} has not one class a sample; choose Loss, GradNorm or RS2"
        )

    def _losses(self, module: nn.Module, output: Any, labels: Tensor) -> Tensor:
        if self._name in _ELEMENTWISE and isinstance(output, Tensor) and output.shape != labels.shape:
            raise ValueError(
                f"{self._name} compares element by element, but the model's output has shape {list(output.shape)} and the labels have "
                f"{list(labels.shape)}: bring labels into the output's shape with data.label_transformer_function, or change the model"
            )
        losses: Tensor = self._moved(module, labels.device)(output, labels)
        return losses

    def _weighted(self, losses: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        if losses.dim() == 0 or len(losses) != len(weights):
            raise self._no_samples("selection_strategy.uses_weights", "choose another loss or set uses_weights: false")
        summed = torch.dot(losses.flatten(1).sum(1) if losses.dim() > 1 else losses, weights.to(losses.dtype))
        return summed if self.sums else summed / self._divisor(losses, labels)

    def _divisor(self, losses: Tensor, labels: Tensor) -> Tensor | int:
        """Return the number by which the class divides the sum of losses. The number stays on the device, because a read would wait."""
        if not self._ignores(labels):
            return losses.numel()
        if self._sampled:
            return len(losses)
        counts = self._counted(labels).sum(dtype=losses.dtype)
        return counts.clamp_min(torch.finfo(losses.dtype).tiny)  # if all labels are ignored, the loss is 0

    def _ignores(self, labels: Tensor) -> bool:
        """Return whether labels are classes. The loss may then ignore one class and weigh the other classes."""
        return self._name in ("CrossEntropyLoss", "NLLLoss") and not labels.is_floating_point()

    def _counted(self, labels: Tensor) -> Tensor:
        """Return the weight of each label: the weight of its class, or 0 for an ignored label."""
        module: Any = self._moved(self._module, labels.device)
        counted = labels != module.ignore_index
        counts: Tensor = counted if module.weight is None else module.weight[labels.where(counted, 0)] * counted
        return counts

    def _moved(self, module: nn.Module, device: torch.device) -> nn.Module:
        """Return the loss with its class weights, if any, on the device."""
        return module.to(device) if self._has_tensors else module

    @cached_property
    def _has_tensors(self) -> bool:
        return next(chain(self._module.buffers(), self._module.parameters()), None) is not None

    def _no_samples(self, what: str, advice: str) -> ConfigError:
        return ConfigError(f"{_PATH}.name: {self._name} gives no loss per sample, which {what} needs; {advice}")
