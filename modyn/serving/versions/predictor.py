"""Protocols of a loaded model version, which computes predictions, and of the loader of versions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from modyn.serving.messages.signature import DTYPES, ModelSignature, Tensor, Tensors, TensorSignature


class Predictor(Protocol):
    """A model version in memory."""

    @property
    def signature(self) -> ModelSignature:
        """Inputs and outputs of the version. The signature never changes."""
        ...

    def predict(self, inputs: Tensors) -> Tensors:
        """Return all outputs for inputs that fit the signature.

        Several threads may call this method at the same time. A batched predictor returns one row for each row of the inputs, in the order of the
        inputs. No row depends on other rows.
        """
        ...

    def check(self, inputs: Tensors) -> None:
        """Check the inputs beyond the signature, without calling the model. Raises InvalidArgumentError: `predict` would refuse the inputs."""
        ...

    def close(self) -> None:
        """Release all resources. The caller makes no further call."""
        ...


@dataclass(frozen=True, slots=True)
class VersionName:
    """Name of a model version, in the form that requests and answers use."""

    model: str
    version: str

    def __str__(self) -> str:
        """Return the name in the form for messages."""
        return f"version {self.version} of model '{self.model}'"


VersionLoader = Callable[[VersionName], Predictor]
"""Function that loads a version into memory, ready for `predict`. Raises NotFoundError: the version does not exist."""


def warm_up(predictor: Predictor, batches: int) -> None:
    """Predict `batches` batches of zeros, so that memory, kernels and caches are ready for the first request."""
    for number in range(batches):
        rows = 1 if number % 2 == 0 else 8
        predictor.predict({tensor.name: zeros(tensor, rows) for tensor in predictor.signature.inputs})


def zeros(tensor: TensorSignature, rows: int) -> Tensor:
    """Return zeros or example bytes that fit the tensor, with `rows` rows in the batch dimension, and size 1 in each other dimension of any size."""
    shape = [rows if place == 0 and size == -1 else abs(size) for place, size in enumerate(tensor.shape)]
    return np.full(shape, tensor.example, np.object_) if tensor.datatype == "BYTES" else np.zeros(shape, DTYPES[tensor.datatype])
