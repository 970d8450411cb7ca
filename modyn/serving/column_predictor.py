"""A PyTorch module behind the preprocessing that its version was trained with: columns in, predictions out. Imports torch: for the process that
serves only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from modyn.dataset.batch import map_tensors
from modyn.errors import DataError, InvalidArgumentError
from modyn.models.calls import forward
from modyn.preprocessing import Features, Preprocessing
from modyn.preprocessing.columns import ColumnKind
from modyn.preprocessing.input_guard import InputCounts
from modyn.serving.signature import ModelSignature, Tensor, Tensors, TensorSignature
from modyn.serving.torch_predictor import named_arrays, outputs_of_zeros

_DATATYPES: Final = {ColumnKind.NUMBER: "FP64", ColumnKind.CATEGORY: "BYTES", ColumnKind.TEXT: "BYTES"}


class ColumnPredictor:
    """Makes features of columns by the statistics of the version, which do not change, and calls its module with them, in evaluation mode, without
    gradients, on one device. Threads may call it at once.

    The signature has one input of shape [-1] for each column: FP64 for a number, NaN where it is missing, and BYTES in UTF-8 for a category or text.
    An empty text is missing where payloads are CSV, as it is in these.

    Args: found: called with what InputGuards find in each batch that is predicted.
    Raises: ConfigError: the module does not take such features, or returns something else than tensors with a row for each sample.
    """

    def __init__(
        self,
        module: nn.Module,
        preprocessing: Preprocessing,
        device: str = "cpu",
        found: Callable[[Mapping[str, InputCounts]], object] = lambda _: None,
    ) -> None:
        self._module, self._found = module.to(device).eval(), found
        self._preprocessing, self._device = preprocessing, device
        self._empty_is_missing = preprocessing.config.format == "csv"
        kinds = preprocessing.config.kinds
        inputs = tuple(TensorSignature(name, _DATATYPES[kind], (-1,), nan_allowed=True) for name, kind in kinds.items())
        self._signature = ModelSignature(inputs, outputs_of_zeros(self.predict, inputs, type(module).__name__))

    @property
    def signature(self) -> ModelSignature:
        """Inputs as the section `preprocessing` declares columns, outputs as the module returns them."""
        return self._signature

    def features(self, inputs: Tensors) -> Any:
        """What the module is given for the columns of a request: a tensor, or several by name.

        Raises: InvalidArgumentError: a value cannot be a feature.
        """
        return self._on_device(self._made(inputs)[0])

    def predict(self, inputs: Tensors) -> Tensors:
        """Return what the module returns, by name. Half precision that NumPy has not becomes FP32. Raises: as `features`."""
        features, found = self._made(inputs)
        with torch.inference_mode():
            outputs = named_arrays(forward(self._module, self._on_device(features)))
        self._found(found)
        return outputs

    def check(self, inputs: Tensors) -> None:
        """Make the features of inputs, and discard them. Raises: as `features`."""
        self._made(inputs)

    def close(self) -> None:
        """Drop the module; memory of its device is free once no batch uses it."""
        del self._module

    def _on_device(self, features: Features) -> Any:
        return map_tensors(features.to_torch(), lambda tensor: tensor.to(self._device))

    def _made(self, inputs: Tensors) -> tuple[Features, Mapping[str, InputCounts]]:
        columns = {name: self._read(values) for name, values in inputs.items()}
        try:
            return self._preprocessing.transform_and_look(columns)
        except DataError as error:
            raise InvalidArgumentError(error.message) from error

    def _read(self, values: Tensor) -> Any:
        if values.dtype != np.object_:
            return values
        texts = [value or None for value in values.tolist()] if self._empty_is_missing else values.tolist()
        return pa.array(texts, pa.binary())
