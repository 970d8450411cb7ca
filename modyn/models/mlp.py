"""Multi-layer perceptron, and logistic regression: the one without a hidden layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from modyn.config.base import Section

if TYPE_CHECKING:
    from torch import nn


class MLPConfig(Section):
    """Options of MLP."""

    input_size: int = Field(ge=1, description="values in a sample; samples of several dimensions are flattened")
    hidden_sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field((128,), description="width of each hidden layer, in order")
    num_classes: int = Field(ge=1, description="logits that come out")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of hidden values set to 0 while training")


class MLP:
    """Linear layers with ReLU (and dropout) in between, on x flattened to (batch, input_size).

    >>> import torch
    >>> MLP(MLP.Config(input_size=64, hidden_sizes=[32, 16], num_classes=10)).build()(torch.zeros(3, 8, 8)).shape
    torch.Size([3, 10])
    """

    Config: ClassVar[type[Section]] = MLPConfig

    def __init__(self, config: MLPConfig) -> None:
        self.config = config

    def build(self) -> nn.Module:
        """The network, with fresh weights."""
        from modyn.models.mlp_nn import MLPNetwork

        return MLPNetwork(self.config.input_size, self.config.hidden_sizes, self.config.num_classes, self.config.dropout)


class LogisticRegressionConfig(Section):
    """Options of LogisticRegression."""

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
        """The network, with fresh weights."""
        from modyn.models.mlp_nn import MLPNetwork

        return MLPNetwork(self.config.input_size, (), self.config.num_classes, dropout=0.0)
