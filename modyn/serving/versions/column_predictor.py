"""Predictor of a version with a section `preprocessing`, which takes columns and returns predictions. This module imports torch, so only the serving
process imports this module.
"""

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
from modyn.preprocessing.components.input_guard import InputCounts
from modyn.serving.messages.signature import ModelSignature, Tensor, Tensors, TensorSignature
from modyn.serving.versions.torch_predictor import named_arrays, outputs_of_zeros

_DATATYPES: Final = {ColumnKind.NUMBER: "FP64", ColumnKind.CATEGORY: "BYTES", ColumnKind.TEXT: "BYTES"}


class ColumnPredictor:
    """Makes features from columns with the statistics of the version, and calls the module of the version with these features on one device, without
    gradients. Thread-safe.

    The signature has one input of shape [-1] for each column: FP64 for a number, with NaN for a missing number, and BYTES in UTF-8 for a category or
    text. If payloads are CSV, an empty text is a missing value.

    Args: found: function that receives the findings of InputGuards for each predicted batch.
    Raises: ConfigError: the module does not take such features, or does not return tensors with a row for each sample.
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
        # CSV cannot express a missing value, so an empty field counts as a missing value.
        self._empty_is_missing = preprocessing.config.format == "csv"
        kinds = preprocessing.config.kinds
        inputs = tuple(TensorSignature(name, _DATATYPES[kind], (-1,), nan_allowed=True) for name, kind in kinds.items())
        self._signature = ModelSignature(inputs, outputs_of_zeros(self.predict, inputs, type(module).__name__))

    @property
    def signature(self) -> ModelSignature:
        """Signature of the version. The inputs are the columns of the section `preprocessing`. The outputs are the outputs of the module."""
        return self._signature

    def features(self, inputs: Tensors) -> Any:
        """Return the module's input for the columns of a request: a tensor, or several tensors by name.

        Raises: InvalidArgumentError: a value cannot be a feature.
        """
        return self._on_device(self._transform(inputs)[0])

    def predict(self, inputs: Tensors) -> Tensors:
        """Return the module's outputs by name. bfloat16 outputs become FP32. Raises: the errors of `features`."""
        features, found = self._transform(inputs)
        with torch.inference_mode():
            outputs = named_arrays(forward(self._module, self._on_device(features)))
        # Counted after the prediction, so that a failed request does not count.
        self._found(found)
        return outputs

    def check(self, inputs: Tensors) -> None:
        """Check that features can be made from the inputs. Raises: the errors of `features`."""
        self._transform(inputs)

    def close(self) -> None:
        """Release the module. The memory of the module on the device is free when no batch uses the module any more."""
        del self._module

    def _on_device(self, features: Features) -> Any:
        return map_tensors(features.to_torch(), lambda tensor: tensor.to(self._device))

    def _transform(self, inputs: Tensors) -> tuple[Features, Mapping[str, InputCounts]]:
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
