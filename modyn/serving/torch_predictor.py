"""A PyTorch module as a predictor. Imports torch: for the process that serves only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from modyn.errors import ConfigError, InvalidArgumentError
from modyn.models import config_class
from modyn.models.calls import Data, forward
from modyn.models.export import ModelInput, input_names, named_outputs
from modyn.serving.predictor import zeros
from modyn.serving.signature import ModelSignature, Tensor, Tensors, TensorSignature, datatype_of


class TorchPredictor:
    """Calls a module in evaluation mode, without gradients, on one device. Threads may call it at once: nothing of it changes.

    The signature's outputs are those of a batch of zeros, by `named_outputs`.

    Args: inputs: without the dimension of the batch; by `input_names`.
    Raises: ConfigError: the module does not take such inputs, or returns something else than tensors with a row for each sample.
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
        self._signature = ModelSignature(tensors, ())
        self._signature = ModelSignature(tensors, outputs_of_zeros(self.predict, tensors, type(module).__name__))

    @property
    def signature(self) -> ModelSignature:
        """Inputs as they were given, outputs as the module returns them."""
        return self._signature

    def predict(self, inputs: Tensors) -> Tensors:
        """Return what the module returns, by name. Half precision that NumPy has not becomes FP32."""
        with torch.inference_mode():
            return named_arrays(forward(self._module, self._data(inputs)))

    def check(self, inputs: Tensors) -> None:
        """Refuse nothing: a tensor that fits the signature is one that the module is given."""

    def close(self) -> None:
        """Drop the module; memory of its device is free once no batch uses it."""
        del self._module

    def _data(self, inputs: Tensors) -> Data:
        if self._by_name:
            return {name: self._to_torch(inputs[name]) for name in self._names}
        tensors = [self._to_torch(inputs[name]) for name in self._names]
        return tensors[0] if len(tensors) == 1 else tuple(tensors)

    def _to_torch(self, values: Tensor) -> torch.Tensor:
        # Bytes of a request are read-only, and torch warns of memory that it could write to: then it gets a copy.
        tensor = torch.from_numpy(values if values.flags.writeable else values.copy())
        return tensor if self._on_cpu else tensor.to(self._device)


def outputs_of_zeros(
    predict: Callable[[Tensors], Tensors], inputs: Sequence[TensorSignature], model: str
) -> tuple[TensorSignature, ...]:
    """Return the outputs of a model, as it returns them for batches of zeros. Args: model: its class, for messages.

    Raises: ConfigError: it does not take such inputs, or returns something else than tensors with a row for each sample.
    """
    shapes: list[dict[str, Tensor]] = []
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
    """What a module returns as arrays by name, as `named_outputs`.

    Raises: InvalidArgumentError: it returns something else than tensors.
    """
    return {name: _to_numpy(name, values) for name, values in named_outputs(found).items()}


def inputs_of(model_class: str, model_config: Mapping[str, Any]) -> tuple[ModelInput, ...]:
    """Return the inputs of a model by its definition: `sample_shape` of its checked options, FP32.

    Raises: ConfigError: the model is unknown, or does not say.
    """
    options = config_class(model_class)(**model_config)
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
