"""The outcome of a classifier for each sample: error, loss and confidence. Only workers import this module, because it imports torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from modyn.errors import ConfigError


def probabilities(logits: Tensor) -> Tensor:
    """Return the class probabilities, (n, c), for logits of the same shape. For a single logit, return the probability of class 1."""
    return logits.softmax(1) if logits.shape[1] > 1 else logits.sigmoid()


def outcomes(logits: Tensor, labels: Tensor) -> Tensor:
    """Return error (0 or 1), cross-entropy and confidence of each sample, float32 (n, 3). If several logits are equal, the first class is the
    prediction.

    Args: logits: (n, c); if c = 1, the logit of class 1 of two classes. labels: n whole numbers in [0, c); 0 or 1 if c = 1.
    Raises ConfigError: the labels are not classes, or there are more classes than logits.

    >>> outcomes(torch.tensor([[0.0, 2.0], [0.0, 2.0]]), torch.tensor([1, 0])).round(decimals=2)
    tensor([[0.0000, 0.1300, 0.8800],
            [1.0000, 2.1300, 0.8800]])
    """
    both = logits.float()
    if both.shape[1] == 1:  # The logit of class 0 is set to 0, so that the softmax equals the sigmoid.
        both = torch.cat([torch.zeros_like(both), both], 1)
    classes = _classes(labels, both.shape[1])
    error = (both.argmax(1) != classes).float()  # Logits are compared, because rounding may make probabilities equal.
    loss = functional.cross_entropy(both, classes, reduction="none")
    return torch.stack([error, loss, both.softmax(1).amax(1)], 1)


def _classes(labels: Tensor, num_classes: int) -> Tensor:
    """Return the labels as int64 (n,)."""
    classes = labels.reshape(-1).long()
    if len(classes) != len(labels) or not torch.equal(classes.to(labels.dtype), labels.reshape(-1)):
        raise ConfigError(
            f"errors, losses and confidences need classes as labels: one whole number for each sample. These are {labels.dtype} of shape "
            f"{list(labels.shape)}; request scores of a metric, or logits"
        )
    if len(classes) and not 0 <= int(classes.min()) <= int(classes.max()) < num_classes:
        raise ConfigError(
            f"errors, losses and confidences need labels that the model knows: labels are in [{int(classes.min())}, {int(classes.max())}], but the "
            f"model has {num_classes} classes; correct num_classes, or use label_transformer_function"
        )
    return classes
