"""A predictor whose answers say which version made them and for which rows, for tests of serving."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from modyn.errors import NotFoundError
from modyn.serving.predictor import VersionName
from modyn.serving.signature import ModelSignature, Tensors, TensorSignature
from modyn.testing.waiting import PATIENCE_S

SIGNATURE = ModelSignature(
    (TensorSignature("input", "FP32", (-1, 3)),),
    (TensorSignature("sum", "FP32", (-1,)), TensorSignature("version", "INT64", (-1, 4))),
)


class FakePredictor:
    """Returns the sum of each row, and the number of the version four times for each row.

    `batches` holds the rows of each batch. `before` is called with the inputs before each answer: it may wait, or raise.
    """

    def __init__(
        self, version: int = 1, before: Callable[[Tensors], object] = lambda _: None, signature: ModelSignature = SIGNATURE
    ) -> None:
        self.version, self.before, self.signature = version, before, signature
        self.batches: list[int] = []
        self.closed = threading.Event()

    def predict(self, inputs: Tensors) -> Tensors:
        """Answer, unless it was closed, which is an error of the caller."""
        assert not self.closed.is_set(), f"version {self.version} was closed and predicts"
        rows = len(inputs["input"])
        self.batches.append(rows)
        self.before(inputs)
        version = np.empty((rows, 4), np.int64)
        for column in range(4):  # in steps, between which another version would be seen if answers were mixed
            version[:, column] = self.version
        return {"sum": inputs["input"].sum(axis=1, dtype=np.float32), "version": version}

    def check(self, inputs: Tensors) -> None:
        """Refuse nothing. It was not closed, which is an error of the caller."""
        assert not self.closed.is_set(), f"version {self.version} was closed and checks inputs"

    def close(self) -> None:
        """Note that it was closed."""
        self.closed.set()


class PredictorGate:
    """Holds predictors until it is opened: `before` of a FakePredictor. `reached` is set once one waits."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, _: Tensors) -> None:
        """Wait until it is open."""
        self.reached.set()
        assert self.open.wait(PATIENCE_S), "the gate was not opened"


class FakeVersions:
    """Loads a FakePredictor for each version that is a number up to `newest`; `made` holds them by version.

    Args: load_s: how long loading takes.
    """

    def __init__(self, newest: int = 10**9, load_s: float = 0.0, before: Callable[[Tensors], object] = lambda _: None) -> None:
        self.newest, self.load_s, self.before = newest, load_s, before
        self.made: dict[str, FakePredictor] = {}

    def __call__(self, name: VersionName) -> FakePredictor:
        """Load a version. Raises NotFoundError."""
        if not name.version.isdigit() or int(name.version) > self.newest:
            raise NotFoundError(f"there is no {name}")
        time.sleep(self.load_s)
        made = self.made[name.version] = FakePredictor(int(name.version), self.before)
        return made
