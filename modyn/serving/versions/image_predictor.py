"""Predictor of a version whose pipeline has `data.decode.image`, which takes encoded images. This module imports torch, so only the serving process
imports this module.
"""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image
from torch import nn

from modyn.dataset.config import ImageDecoding
from modyn.dataset.image_decoder import ImageDecoder
from modyn.errors import InvalidArgumentError
from modyn.models.export import ModelInput
from modyn.serving.messages.signature import IMAGE, ModelSignature, Tensor, Tensors, TensorSignature
from modyn.serving.versions.torch_predictor import TorchPredictor


class ImagePredictor:
    """Decodes images exactly as the training did, and calls the module on one device, without gradients. Thread-safe.

    The signature has one input, `image`, BYTES of shape [-1]: the bytes of image files.

    Raises: ConfigError: the module does not take such images, or does not return tensors with a row for each image.
    """

    def __init__(self, module: nn.Module, decoding: ImageDecoding, device: str = "cpu") -> None:
        self._decoder = ImageDecoder(decoding)
        self._predictor = TorchPredictor(module, (ModelInput(self._decoder.shape),), device)
        blank = io.BytesIO()
        Image.new("L", (1, 1)).save(blank, "PNG")
        given = TensorSignature(IMAGE, "BYTES", (-1,), example=blank.getvalue())
        self._signature = ModelSignature((given,), self._predictor.signature.outputs)

    @property
    def signature(self) -> ModelSignature:
        """The input `image`, and the outputs of the module."""
        return self._signature

    def predict(self, inputs: Tensors) -> Tensors:
        """Return the module's outputs by name. Raises: InvalidArgumentError: a value is not an image."""
        (tensor,) = self._predictor.signature.inputs
        return self._predictor.predict({tensor.name: self._decoded(inputs)})

    def check(self, inputs: Tensors) -> None:
        """Check that all values are images. Raises: the errors of `predict`."""
        self._decoded(inputs)

    def close(self) -> None:
        """Release the module."""
        self._predictor.close()

    def _decoded(self, inputs: Tensors) -> Tensor:
        pixels = list[torch.Tensor]()
        for row, value in enumerate(inputs[IMAGE].tolist()):
            try:
                pixels.append(self._decoder.decode(value))
            except ValueError as error:
                raise InvalidArgumentError(f"input '{IMAGE}', row {row}: {error}") from error
        if not pixels:
            return np.zeros((0, *self._decoder.shape), np.float32)
        images: Tensor = self._decoder.normalized(torch.stack(pixels)).numpy()
        return images
