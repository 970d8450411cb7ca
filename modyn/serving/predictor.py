"""What computes predictions: the protocol that a loaded model version fulfils, and the one that loads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from modyn.serving.signature import DTYPES, ModelSignature, Tensor, Tensors, TensorSignature


class Predictor(Protocol):
    """A model version in memory. A step in front of it, such as preprocessing, is a Predictor that holds another one."""

    @property
    def signature(self) -> ModelSignature:
        """What it takes and returns; the same for as long as it lives."""
        ...

    def predict(self, inputs: Tensors) -> Tensors:
        """Return all outputs for inputs that fit the signature. Called by several threads at once if the server has several.

        A batched predictor returns as many rows as it is given, in their order, and no row depends on the others.
        """
        ...

    def check(self, inputs: Tensors) -> None:
        """Check what the signature cannot say of inputs that fit it, without calling the model. Raises InvalidArgumentError: as `predict`."""
        ...

    def close(self) -> None:
        """Release what it holds. No call follows."""
        ...


@dataclass(frozen=True, slots=True)
class VersionName:
    """A version of a model, as requests and answers name it."""

    model: str
    version: str

    def __str__(self) -> str:
        """What messages call it."""
        return f"version {self.version} of model '{self.model}'"


class VersionLoader(Protocol):
    """Loads a version into memory; the seam between what is served and where it comes from."""

    def __call__(self, name: VersionName) -> Predictor:
        """Return the version, ready for `predict`. Raises NotFoundError: there is none."""
        ...


def warm_up(predictor: Predictor, batches: int) -> None:
    """Predict some batches of zeros, so that the first request finds memory, kernels and caches as they will be."""
    for number in range(batches):
        rows = 1 if number % 2 == 0 else 8
        predictor.predict({tensor.name: zeros(tensor, rows) for tensor in predictor.signature.inputs})


def zeros(tensor: TensorSignature, rows: int) -> Tensor:
    """Values that fit the tensor: zeros or empty bytes, `rows` in the dimension of the batch, 1 where any other size fits."""
    shape = [rows if place == 0 and size == -1 else abs(size) for place, size in enumerate(tensor.shape)]
    return np.full(shape, b"", np.object_) if tensor.datatype == "BYTES" else np.zeros(shape, DTYPES[tensor.datatype])
