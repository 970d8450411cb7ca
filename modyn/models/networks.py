"""Networks of the models in `specs`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from modyn.errors import ConfigError
from modyn.models.specs import LogisticRegressionConfig, MLPConfig, ResNetConfig, SmallCNNConfig, SparseLogisticRegressionConfig


class EmbeddingNetwork(nn.Module):
    """A network with an `embedding` and a last linear layer, by default `output`."""

    output: nn.Linear

    @property
    def last_layer(self) -> nn.Linear:
        """Return the layer that turns an embedding into logits."""
        return self.output

    def embedding(self, x: Tensor) -> Tensor:
        """x (batch, ...) → (batch, inputs of the last layer)."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """x (like in `embedding`) → logits (batch, num_classes)."""
        logits: Tensor = self.last_layer(self.embedding(x))
        return logits


def perceptron(widths: Sequence[int], dropout: float = 0.0) -> nn.Sequential:
    """Return linear layers between `widths`, each followed by ReLU and dropout."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(dropout) if dropout else nn.Identity()]
    return nn.Sequential(*layers)


class MLPNetwork(EmbeddingNetwork):
    """A multilayer perceptron. `hidden`: linear layers with ReLU and dropout; `output`: the last linear layer."""

    def __init__(self, config: MLPConfig | LogisticRegressionConfig) -> None:
        super().__init__()
        widths = (config.input_size, *config.hidden_sizes)
        self.hidden = perceptron(widths, config.dropout)
        self.output = nn.Linear(widths[-1], config.num_classes)

    def embedding(self, x: Tensor) -> Tensor:
        """x (batch, ...) → (batch, width of the last hidden layer)."""
        found: Tensor = self.hidden(x.flatten(1))
        return found


class SparseLogisticRegressionNetwork(nn.Module):
    """A linear model. `weight` has a row for each feature, and a row of zeros for "no feature". `dense` has a row for each dense feature. `bias` is
    added to the sum of the rows.
    """

    def __init__(self, config: SparseLogisticRegressionConfig) -> None:
        super().__init__()
        self.weight = nn.EmbeddingBag(config.num_features + 1, config.num_classes, mode="sum", padding_idx=config.num_features)
        nn.init.zeros_(self.weight.weight)
        # This is not an nn.Linear, which would count as the last layer with an embedding as its input.
        self.dense = nn.Parameter(torch.zeros(config.num_dense, config.num_classes)) if config.num_dense else None
        self.bias = nn.Parameter(torch.zeros(config.num_classes))

    def forward(
        self,
        x: Tensor | None = None,
        indices: Tensor | None = None,
        offsets: Tensor | None = None,
        values: Tensor | None = None,
        dense: Tensor | None = None,
    ) -> Tensor:
        """x int64 (batch, k), or the features of `modyn.preprocessing.Features.to_torch` → logits (batch, num_classes).

        Raises RuntimeError: a sparse feature is out of range; ConfigError: the number of dense features is wrong.
        """
        if x is not None:
            logits: Tensor = self.weight(x.masked_fill(x < 0, self.weight.num_embeddings - 1))
        else:
            logits = self.weight(indices, offsets, per_sample_weights=values)
        given = 0 if dense is None else dense.shape[1]
        taken = 0 if self.dense is None else len(self.dense)
        if given != taken:
            raise ConfigError(
                f"model.config.num_dense: samples have {given} dense features, but the model takes {taken}; set it to {given}"
            )
        return logits + self.bias if dense is None or self.dense is None else logits + dense @ self.dense + self.bias


class SmallCNNNetwork(EmbeddingNetwork):
    """A small convolutional network. `features`: the convolutions; `hidden`: the embedding; `output`: the last layer."""

    def __init__(self, config: SmallCNNConfig) -> None:
        super().__init__()
        width, pooled_size = config.width, config.image_size // 4
        self.features = nn.Sequential(
            nn.Conv2d(config.in_channels, width, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.hidden = nn.Sequential(
            nn.Flatten(), nn.Linear(2 * width * pooled_size**2, config.embedding_size), nn.ReLU(), nn.Dropout(config.dropout)
        )
        self.output = nn.Linear(config.embedding_size, config.num_classes)

    def embedding(self, x: Tensor) -> Tensor:
        """x (batch, in_channels, image_size, image_size) → (batch, embedding_size)."""
        found: Tensor = self.hidden(self.features(x))
        return found


def _convolution(in_channels: int, out_channels: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Make a convolution without bias, because the following batch normalisation has a bias."""
    return nn.Conv2d(in_channels, out_channels, size, stride=stride, padding=size // 2, bias=False)


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Sequential | None:
    """Make a projection if the shape changes (He et al. 2015, option B). None: the shape stays the same, so the shortcut is the identity."""
    if stride == 1 and in_channels == out_channels:
        return None
    return nn.Sequential(_convolution(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels))


class BasicBlock(nn.Module):
    """relu(x + f(x)). f has two 3×3 convolutions; the first convolution has the stride. (He et al. 2015, figure 5, left.)"""

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        """Args: stride: stride of the first convolution, and of a projection."""
        super().__init__()
        self.conv1 = _convolution(in_channels, channels, 3, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _convolution(channels, channels, 3)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = _shortcut(in_channels, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """x: (n, in_channels, h, w) → (n, channels, h / stride, w / stride), rounded up."""
        residual = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(residual + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """relu(x + f(x)). f has a 1×1, a 3×3 and a 1×1 convolution. (He et al. 2015, figure 5, right, but with the stride in the 3×3 convolution.)"""

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        """Args: channels: channels of the inner convolutions; the block returns `expansion` times this number of channels."""
        super().__init__()
        out_channels = self.expansion * channels
        self.conv1 = _convolution(in_channels, channels, 1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _convolution(channels, channels, 3, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = _convolution(channels, out_channels, 1)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.downsample = _shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """x: (n, in_channels, h, w) → (n, 4 · channels, h / stride, w / stride), rounded up."""
        residual = torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))
        return torch.relu(self.bn3(self.conv3(residual)) + (x if self.downsample is None else self.downsample(x)))


class ResNetNetwork(EmbeddingNetwork):
    """A residual network: a stem, four stages of blocks with 64, 128, 256 and 512 channels, the mean over the image, and the last layer `fc`.

    Names and shapes of parameters follow the usual convention, so that weights trained elsewhere can be loaded.
    """

    def __init__(self, config: ResNetConfig, blocks: Sequence[int], bottleneck: bool) -> None:
        """Args: blocks: number of blocks of each stage. bottleneck: whether blocks are `Bottleneck`; otherwise blocks are `BasicBlock`."""
        super().__init__()
        block: type[BasicBlock] | type[Bottleneck] = Bottleneck if bottleneck else BasicBlock
        self.conv1 = _convolution(config.in_channels, 64, 3) if config.small_input else _convolution(config.in_channels, 64, 7, 2)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.Identity() if config.small_input else nn.MaxPool2d(3, stride=2, padding=1)
        in_channels, stages = 64, []
        for stage, num_blocks in enumerate(blocks):
            channels = 64 << stage
            layer = nn.Sequential()
            for index in range(num_blocks):
                layer.append(block(in_channels, channels, stride=2 if stage > 0 and index == 0 else 1))
                in_channels = block.expansion * channels
            stages.append(layer)
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Linear(in_channels, config.num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):  # He et al.: Delving Deep into Rectifiers, 2015, equation 14
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @property
    def last_layer(self) -> nn.Linear:
        """Return the layer that turns an embedding into logits."""
        return self.fc

    def embedding(self, x: Tensor) -> Tensor:
        """x (batch, in_channels, height, width) → (batch, 512) or, with bottlenecks, (batch, 2048)."""
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return x.mean(dim=(2, 3))
