"""Options of the built-in models.

The networks are in other modules, which are imported only when a network is built. Therefore pipelines can be checked and described without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from modyn.config.base import PlacedError, Section
from modyn.models.export import ModelInput


class _Spec:
    """A model that declares the import path of its network. `build_model` calls the network's class with the config and the `arguments`."""

    Config: ClassVar[type[Section]]
    network: ClassVar[str]
    arguments: ClassVar[tuple[Any, ...]] = ()
    needs: ClassVar[str] = ""
    """Package of the extra `vision` that the network needs; empty: none."""


class MLPConfig(Section):
    """Options of MLP."""

    input_size: int = Field(ge=1, description="number of values in a sample")
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

    input_size: int = Field(ge=1, description="number of values in a sample")
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

    num_features: int = Field(ge=1, description="number of features")
    num_classes: int = Field(ge=1, description="number of output logits")
    num_dense: int = Field(0, ge=0, description="number of additional dense features")

    def feature_options(self, num_dense: int, num_sparse: Sequence[int]) -> dict[str, Any]:
        """Return the options that fit the features of the section `preprocessing`."""
        return {"num_features": sum(num_sparse), "num_dense": num_dense}


class SparseLogisticRegression(_Spec):
    """logits = b + the sum of the rows of W for the features of a sample. x is int64 (batch, k): the numbers of the features that are 1, such as
    one-hot or hashed categories; a negative number means no feature. Alternatively, x contains the features of the section `preprocessing`."""

    Config = SparseLogisticRegressionConfig
    network = "modyn.models.networks:SparseLogisticRegressionNetwork"


class SmallCNNConfig(Section):
    """Options of SmallCNN."""

    in_channels: int = Field(1, ge=1, description="1 for gray images, 3 for RGB")
    num_classes: int = Field(10, ge=1, description="number of output logits")
    image_size: int = Field(28, ge=4, description="height and width of the images, in pixels")
    width: int = Field(16, ge=1, description="channels of the first convolution; the second has twice as many")
    embedding_size: int = Field(64, ge=1, description="width of the embedding")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of hidden values that are set to 0 in training")

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


class YearbookNetConfig(Section):
    """Options of YearbookNet."""

    in_channels: int = Field(1, ge=1, description="1 for gray images, 3 for RGB")
    num_classes: int = Field(2, ge=1, description="number of output logits")

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Return the sizes of one sample for serving; -1 means any."""
        return (self.in_channels, 32, 32)


class YearbookNet(_Spec):
    """The network of Wild-Time (2022) for yearbook: four 3×3 convolutions of 32 channels on images of 32×32, and a linear layer on the mean."""

    Config = YearbookNetConfig
    network = "modyn.models.wild_time:YearbookNetwork"


class FmowNetConfig(Section):
    """Options of FmowNet."""

    num_classes: int = Field(62, ge=1, description="number of output logits")

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Return the sizes of one sample for serving; -1 means any."""
        return (3, 224, 224)


class FmowNet(_Spec):
    """The network of Wild-Time (2022) for fmow: DenseNet-121 on RGB images of 224×224. Needs `pip install modyn[vision]`."""

    Config = FmowNetConfig
    network = "modyn.models.wild_time:FmowNetwork"
    needs = "torchvision"


class ColumnConfig(Section):
    """Options of models of numbers and categories."""

    num_categories: tuple[Annotated[int, Field(ge=1)], ...] = Field((), description="number of categories of each column")
    num_dense: int = Field(0, ge=0, description="number of dense features")
    embedding_size: int = Field(16, ge=1, description="width of the embedding of a category")
    num_classes: int = Field(ge=1, description="number of output logits")
    sparse_gradients: bool = Field(False, description="sparse gradients of embeddings, for SGD, Adagrad and SparseAdam")

    def feature_options(self, num_dense: int, num_sparse: Sequence[int]) -> dict[str, Any]:
        """Return the options that fit the features of the section `preprocessing`."""
        return {"num_categories": tuple(num_sparse), "num_dense": num_dense}

    @property
    def sample_inputs(self) -> tuple[ModelInput, ...]:
        """Return the inputs for serving."""
        dense = ModelInput((self.num_dense,), name="dense")
        categories = ModelInput((len(self.num_categories),), "int64", "categories")
        return (*((dense,) if self.num_dense else ()), *((categories,) if self.num_categories else ()))


class TabularMLPConfig(ColumnConfig):
    """Options of TabularMLP."""

    hidden_sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field((128,), description="width of each hidden layer, in order")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of hidden values that are set to 0 in training")

    @model_validator(mode="after")
    def _has_inputs(self) -> Self:
        if not self.num_categories and not self.num_dense:
            raise PlacedError("num_dense", "a model without inputs learns nothing: set num_dense or num_categories")
        return self


class TabularMLP(_Spec):
    """An MLP on dense features and the embeddings of categories. The inputs are the features of the section `preprocessing`, or `dense` (batch,
    num_dense) and `categories` (batch, columns), whole numbers that count modulo the number of categories."""

    Config = TabularMLPConfig
    network = "modyn.models.tabular:TabularMLPNetwork"


class DLRMConfig(ColumnConfig):
    """Options of DLRM."""

    num_categories: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        min_length=1, description="number of categories of each column"
    )
    num_dense: int = Field(ge=1, description="number of dense features")
    embedding_size: int = Field(128, ge=1, description="width of the embedding of a category")
    bottom_sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (512, 256), description="widths of hidden layers of `bottom_model`"
    )
    top_sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (1024, 1024, 512, 256), description="widths of hidden layers of `top_model`"
    )


class DLRM(_Spec):
    """The recommendation model of Naumov et al. (2019): an MLP on dense features, `embeddings` of categories, dot products of all pairs of these
    vectors, and an MLP. Inputs as of TabularMLP."""

    Config = DLRMConfig
    network = "modyn.models.dlrm:DLRMNetwork"


class TextClassifierConfig(Section):
    """Options of TextClassifier."""

    vocabulary_size: int = Field(ge=1, description="number of tokens")
    num_classes: int = Field(ge=1, description="number of output logits")
    embedding_size: int = Field(64, ge=1, description="width of the embedding of a token")
    hidden_sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field((128,), description="width of each hidden layer, in order")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of hidden values that are set to 0 in training")
    padding_id: int = Field(0, ge=0, description="token that does not count")

    @model_validator(mode="after")
    def _padding_is_a_token(self) -> Self:
        if self.padding_id >= self.vocabulary_size:
            raise PlacedError("padding_id", f"{self.padding_id} is not below vocabulary_size {self.vocabulary_size}")
        return self

    @property
    def sample_inputs(self) -> tuple[ModelInput, ...]:
        """Return the inputs for serving."""
        return (ModelInput((-1,), "int64", "input_ids"),)


class TextClassifier(_Spec):
    """An MLP on the mean embedding of the tokens `input_ids` (batch, k) of a text, without those where `attention_mask` is 0."""

    Config = TextClassifierConfig
    network = "modyn.models.text:TextClassifierNetwork"
