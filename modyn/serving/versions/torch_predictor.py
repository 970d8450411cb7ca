"""PyTorch module as a predictor. This module imports torch, so only the serving process imports this module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from modyn.errors import ConfigError, InvalidArgumentError
from modyn.models import config_class, is_registered
from modyn.models.calls import Data, forward
from modyn.models.export import ModelInput, input_names, named_outputs
from modyn.serving.messages.signature import ModelSignature, Tensor, Tensors, TensorSignature, datatype_of
from modyn.serving.versions.predictor import zeros


class TorchPredictor:
    """Calls a module in evaluation mode, without gradients, on one device. Thread-safe.

    The outputs of the signature are found with a batch of zeros, and are named by `named_outputs`.

    Args: inputs: inputs without the batch dimension, named by `input_names`.
    Raises: ConfigError: the module does not take such inputs, or does not return tensors with a row for each sample.
    """

    def __init__(
        self, module: nn.Module, inputs: Sequence[ModelInput], device: str = "cpu", *, nan_allowed: bool = False
    ) -> None:
        self._module = module.to(device).eval()
        self._device, self._on_cpu = device, device == "cpu"
        self._by_name = all(given.name is not None for given in inputs)
        self._names = names = input_names(inputs)
        tensors = tuple(
            TensorSignature(name, datatype_of(np.dtype(given.dtype)), (-1, *given.shape), nan_allowed)
            for name, given in zip(names, inputs, strict=True)
        )
        # `predict` needs the inputs of the signature, so the outputs are added in a second step.
        self._signature = ModelSignature(tensors, ())
        self._signature = ModelSignature(tensors, outputs_of_zeros(self.predict, tensors, type(module).__name__))

    @property
    def signature(self) -> ModelSignature:
        """The given inputs, and the outputs that the module returns."""
        return self._signature

    def predict(self, inputs: Tensors) -> Tensors:
        """Return the module's outputs by name. bfloat16 outputs become FP32."""
        with torch.inference_mode():
            return named_arrays(forward(self._module, self._data(inputs)))

    def check(self, inputs: Tensors) -> None:
        """Do nothing, because the signature already checks everything about the inputs."""

    def close(self) -> None:
        """Release the module. The memory of the module on the device is free when no batch uses the module any more."""
        del self._module

    def _data(self, inputs: Tensors) -> Data:
        if self._by_name:
            return {name: self._to_torch(inputs[name]) for name in self._names}
        tensors = [self._to_torch(inputs[name]) for name in self._names]
        return tensors[0] if len(tensors) == 1 else tuple(tensors)

    def _to_torch(self, values: Tensor) -> torch.Tensor:
        # Arrays over the bytes of a request are read-only, and torch would warn about read-only arrays. Therefore torch gets a copy.
        tensor = torch.from_numpy(values if values.flags.writeable else values.copy())
        return tensor if self._on_cpu else tensor.to(self._device)


def outputs_of_zeros(
    predict: Callable[[Tensors], Tensors], inputs: Sequence[TensorSignature], model: str
) -> tuple[TensorSignature, ...]:
    """Return the signature of a model's outputs, found with batches of zeros. Args: model: class of the model, for messages.

    Raises: ConfigError: the model does not take such inputs, or does not return tensors with a row for each sample.
    """
    shapes: list[dict[str, Tensor]] = []
    # Sizes that depend on the number of rows differ between batches of 2 and 3 rows; fixed sizes are equal.
    for rows in (2, 3):
        batch = {tensor.name: zeros(tensor, rows) for tensor in inputs}
        try:
            shapes.append(dict(predict(batch)))
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            given = ", ".join(f"{tensor.name} {tensor.datatype} {list(tensor.shape)}" for tensor in inputs)
            raise ConfigError(
                f"{model} does not take the inputs {given}: {error}; correct serving.inputs, or --input, or the section preprocessing"
            ) from error
    outputs = []
    for name, two in shapes[0].items():
        three = shapes[1][name]
        if two.shape[:1] != (2,) or three.shape[:1] != (3,):
            raise ConfigError(f"{model} returns '{name}' of shape {list(two.shape)} for 2 rows; return a row for each")
        sizes = (size if size == other else -1 for size, other in zip(two.shape[1:], three.shape[1:], strict=True))
        outputs.append(TensorSignature(name, datatype_of(two.dtype), (-1, *sizes)))
    return tuple(outputs)


def named_arrays(found: Any) -> dict[str, Tensor]:
    """Return a module's outputs as arrays, by the names that `named_outputs` gives. Raises InvalidArgumentError: an output is not a tensor."""
    return {name: _to_numpy(name, values) for name, values in named_outputs(found).items()}


def inputs_of(model_class: str, model_config: Mapping[str, Any]) -> tuple[ModelInput, ...]:
    """Return the inputs that a model's configuration defines: its `sample_inputs`, or one FP32 tensor with the shape `sample_shape`.

    Raises: ConfigError: the model is unknown, or does not define a shape.
    """
    options = config_class(model_class)(**model_config) if is_registered(model_class) else None
    if (given := getattr(options, "sample_inputs", None)) is not None:
        return tuple(given)
    shape = getattr(options, "sample_shape", None)
    if shape is None:
        raise ConfigError(
            f"model '{model_class}' does not say what shape a sample has: set serving.inputs (or --input), for example 1,28,28 or tokens=128:int64, "
            "or give its Config a property `sample_shape`"
        )
    return (ModelInput(tuple(shape)),)


def _to_numpy(name: str, values: Any) -> Tensor:
    if not isinstance(values, torch.Tensor):
        raise InvalidArgumentError(
            f"the model returns a {type(values).__name__} as '{name}'; to be served, it must return tensors"
        )
    found: Tensor = (values.float() if values.dtype == torch.bfloat16 else values).cpu().numpy()
    return found
