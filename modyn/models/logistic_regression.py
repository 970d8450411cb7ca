"""Logistic regression: one linear layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from modyn.config.base import Section

if TYPE_CHECKING:
    from torch import nn


class LogisticRegressionConfig(Section):
    input_size: int = Field(ge=1, description="values in a sample; samples of several dimensions are flattened")
    num_classes: int = Field(ge=1, description="logits that come out")


class LogisticRegression:
    """logits = W x + b, with x flattened to (batch, input_size).

    >>> import torch
    >>> LogisticRegression(LogisticRegression.Config(input_size=64, num_classes=10)).build()(torch.zeros(3, 8, 8)).shape
    torch.Size([3, 10])
    """

    Config: ClassVar[type[Section]] = LogisticRegressionConfig

    def __init__(self, config: LogisticRegressionConfig) -> None:
        self.config = config

    def build(self) -> nn.Module:
        """The network. A logistic regression is the MLP without a hidden layer."""
        from modyn.models.mlp_nn import MLPNetwork

        return MLPNetwork(self.config.input_size, (), self.config.num_classes, dropout=0.0)
