"""How a classifier did on each sample: error, loss and confidence. Imports torch: for workers only."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from modyn.errors import ConfigError


def probabilities(logits: Tensor) -> Tensor:
    """The class probabilities, (n, c), of logits of the same shape; of a single logit that of class 1."""
    return logits.softmax(1) if logits.shape[1] > 1 else logits.sigmoid()


def outcomes(logits: Tensor, labels: Tensor) -> Tensor:
    """Error (0 or 1), cross-entropy and confidence of each sample, float32 (n, 3). Of classes with equal logits the first one is taken.

    Args: logits: (n, c); with c = 1 that of class 1 of two. labels: classes, n whole numbers in [0, c), or 0 and 1.
    Raises ConfigError: the labels are not classes, or there are more classes than logits.
    """
    both = logits.float()
    if both.shape[1] == 1:  # the logit of class 0 is 0: softmax is the sigmoid then
        both = torch.cat([torch.zeros_like(both), both], 1)
    classes = _classes(labels, both.shape[1])
    error = (both.argmax(1) != classes).float()  # not of the probabilities: rounded, they may be equal
    loss = functional.cross_entropy(both, classes, reduction="none")
    return torch.stack([error, loss, both.softmax(1).amax(1)], 1)


def _classes(labels: Tensor, num_classes: int) -> Tensor:
    """The labels as int64 (n,)."""
    classes = labels.reshape(-1).long()
    if len(classes) != len(labels) or not torch.equal(classes.to(labels.dtype), labels.reshape(-1)):
        raise ConfigError(
            f"errors, losses and confidences are those of classifiers, and the labels are no classes: they are {labels.dtype} of shape "
            f"{list(labels.shape)}, one number a sample is needed, without fraction; ask for scores of a metric, or for logits"
        )
    if len(classes) and not 0 <= int(classes.min()) <= int(classes.max()) < num_classes:
        raise ConfigError(
            f"errors, losses and confidences are those of classifiers: labels lie in [{int(classes.min())}, {int(classes.max())}], and "
            f"the model has logits of {num_classes} classes; correct num_classes, or use label_transformer_function"
        )
    return classes
