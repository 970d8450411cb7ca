"""Options of the built-in models.

The networks of the models are in `networks`, which is imported only when a network is built. Therefore pipelines can be checked and described without
torch.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from modyn.config.base import Section


class _Spec:
    """A model that declares the import path of its network. `build_model` calls the network's class with the config and the `arguments`."""

    Config: ClassVar[type[Section]]
    network: ClassVar[str]
    arguments: ClassVar[tuple[Any, ...]] = ()


class MLPConfig(Section):
    """Options of MLP."""

    input_size: int = Field(ge=1, description="number of values in a sample; samples of several dimensions are flattened")
    hidden_sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field((128,), description="width of each hidden layer, in order")
    num_classes: int = Field(ge=1, description="number of output logits")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of hidden values that are set to 0 in training")

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Return the sizes of one sample for serving; -1 means any."""
        return (self.input_size,)


class MLP(_Spec):
    """Linear layers with ReLU (and dropout) between them. The input is x, flattened to (batch, input_size)."""

    Config = MLPConfig
    network = "modyn.models.networks:MLPNetwork"


class LogisticRegressionConfig(Section):
    """Options of LogisticRegression: an MLP without a hidden layer."""

    input_size: int = Field(ge=1, description="number of values in a sample; samples of several dimensions are flattened")
    num_classes: int = Field(ge=1, description="number of output logits")
    hidden_sizes: ClassVar[tuple[int, ...]] = ()
    dropout: ClassVar[float] = 0.0

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Return the sizes of one sample for serving; -1 means any."""
        return (self.input_size,)


class LogisticRegression(_Spec):
    """logits = W x + b, with x flattened to (batch, input_size)."""

    Config = LogisticRegressionConfig
    network = "modyn.models.networks:MLPNetwork"


class SparseLogisticRegressionConfig(Section):
    """Options of SparseLogisticRegression."""

    num_features: int = Field(ge=1, description="number of features; samples are lists of numbers of features")
    num_classes: int = Field(ge=1, description="number of output logits; 1 for BCEWithLogitsLoss")
    num_dense: int = Field(0, ge=0, description="number of additional dense features, if the section `preprocessing` makes any")


class SparseLogisticRegression(_Spec):
    """logits = b + the sum of the rows of W for the features of a sample. x is int64 (batch, k): the numbers of the features that are 1, such as
    one-hot or hashed categories; a negative number means no feature. Alternatively, x contains the features of the section `preprocessing`; its
    sparse features have values."""

    Config = SparseLogisticRegressionConfig
    network = "modyn.models.networks:SparseLogisticRegressionNetwork"


class SmallCNNConfig(Section):
    """Options of SmallCNN."""

    in_channels: int = Field(1, ge=1, description="1 for gray images, 3 for RGB")
    num_classes: int = Field(10, ge=1, description="number of output logits")
    image_size: int = Field(28, ge=4, description="height and width of the images, in pixels")
    width: int = Field(16, ge=1, description="channels of the first convolution; the second has twice as many")
    embedding_size: int = Field(64, ge=1, description="number of values in the embedding, before the last layer")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of embedding values that are set to 0 in training")

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Return the sizes of one sample for serving; -1 means any."""
        return (self.in_channels, self.image_size, self.image_size)


class SmallCNN(_Spec):
    """Two 3×3 convolutions, each with ReLU and 2×2 max pooling, followed by a hidden and a last linear layer (like LeNet-5, 1998)."""

    Config = SmallCNNConfig
    network = "modyn.models.networks:SmallCNNNetwork"


class ResNetConfig(Section):
    """Options of every ResNet."""

    num_classes: int = Field(1000, ge=1, description="number of output logits")
    in_channels: int = Field(3, ge=1, description="1 for gray images, 3 for RGB")
    small_input: bool = Field(
        False,
        description="for images of about 32 pixels: the first convolution is 3×3 without stride or pooling (section 4.2 of the paper)",
    )

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Return the sizes of one sample for serving; -1 means any."""
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
