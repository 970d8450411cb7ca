"""Our models as a pipeline names them: their options. Their networks are in `networks` and are imported when one is built.

So a pipeline is checked, and its format described, without importing torch.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from modyn.config.base import Section


class _Spec:
    """A model by the import path of its network, which is called with the config and the `arguments`."""

    Config: ClassVar[type[Section]]
    network: ClassVar[str]
    arguments: ClassVar[tuple[Any, ...]] = ()


class MLPConfig(Section):
    """Options of MLP."""

    input_size: int = Field(ge=1, description="values in a sample; samples of several dimensions are flattened")
    hidden_sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field((128,), description="width of each hidden layer, in order")
    num_classes: int = Field(ge=1, description="logits that come out")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of hidden values set to 0 while training")

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Sizes of one sample, for serving; -1: any."""
        return (self.input_size,)


class MLP(_Spec):
    """Linear layers with ReLU (and dropout) in between, on x flattened to (batch, input_size)."""

    Config = MLPConfig
    network = "modyn.models.networks:MLPNetwork"


class LogisticRegressionConfig(Section):
    """Options of LogisticRegression: an MLP without a hidden layer."""

    input_size: int = Field(ge=1, description="values in a sample; samples of several dimensions are flattened")
    num_classes: int = Field(ge=1, description="logits that come out")
    hidden_sizes: ClassVar[tuple[int, ...]] = ()
    dropout: ClassVar[float] = 0.0

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Sizes of one sample, for serving; -1: any."""
        return (self.input_size,)


class LogisticRegression(_Spec):
    """logits = W x + b, with x flattened to (batch, input_size)."""

    Config = LogisticRegressionConfig
    network = "modyn.models.networks:MLPNetwork"


class SparseLogisticRegressionConfig(Section):
    """Options of SparseLogisticRegression."""

    num_features: int = Field(ge=1, description="features that there are; a sample names those that it has by number")
    num_classes: int = Field(ge=1, description="logits that come out; 1 for BCEWithLogitsLoss")
    num_dense: int = Field(0, ge=0, description="dense features beside them, where the section `preprocessing` makes such")


class SparseLogisticRegression(_Spec):
    """logits = sum of W over the features that a sample has, + b: x is int64 (batch, k), the numbers of features that are 1, as one-hot or hashed
    categories are; a negative number stands for none. Or the features that the section `preprocessing` makes, sparse ones with their values."""

    Config = SparseLogisticRegressionConfig
    network = "modyn.models.networks:SparseLogisticRegressionNetwork"


class SmallCNNConfig(Section):
    """Options of SmallCNN."""

    in_channels: int = Field(1, ge=1, description="1 for gray images, 3 for RGB")
    num_classes: int = Field(10, ge=1, description="logits that come out")
    image_size: int = Field(28, ge=4, description="height and width of the images, in pixels")
    width: int = Field(16, ge=1, description="channels of the first convolution; the second has twice as many")
    embedding_size: int = Field(64, ge=1, description="values in the embedding, before the last layer")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of embedding values set to 0 while training")

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Sizes of one sample, for serving; -1: any."""
        return (self.in_channels, self.image_size, self.image_size)


class SmallCNN(_Spec):
    """Two 3×3 convolutions, each with ReLU and 2×2 max pooling, a hidden linear layer, a last linear layer (after LeNet-5, 1998)."""

    Config = SmallCNNConfig
    network = "modyn.models.networks:SmallCNNNetwork"


class ResNetConfig(Section):
    """Options of every ResNet."""

    num_classes: int = Field(1000, ge=1, description="logits that come out")
    in_channels: int = Field(3, ge=1, description="1 for gray images, 3 for RGB")
    small_input: bool = Field(
        False,
        description="for images of about 32 pixels: first convolution 3×3 without stride, no pooling (section 4.2 of the paper)",
    )

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Sizes of one sample, for serving; -1: any."""
        return (self.in_channels, -1, -1)


class _ResNet(_Spec):
    """A residual network (He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, 2015, table 1).

    `arguments`: the blocks in each of the four stages, and whether a block is a bottleneck (1×1, 3×3, 1×1).
    """

    Config = ResNetConfig
    network = "modyn.models.networks:ResNetNetwork"


class ResNet18(_ResNet):
    """Basic blocks 2, 2, 2, 2; 11.7 million parameters at 1000 classes."""

    arguments = ((2, 2, 2, 2), False)


class ResNet50(_ResNet):
    """Bottleneck blocks 3, 4, 6, 3; 25.6 million parameters at 1000 classes."""

    arguments = ((3, 4, 6, 3), True)


class ResNet152(_ResNet):
    """Bottleneck blocks 3, 8, 36, 3; 60.2 million parameters at 1000 classes."""

    arguments = ((3, 8, 36, 3), True)
