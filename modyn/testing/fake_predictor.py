"""A predictor for tests of serving. The answers of the predictor show which version made an answer, and to which rows the answer belongs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from modyn.errors import NotFoundError
from modyn.serving.messages.signature import ModelSignature, Tensors, TensorSignature
from modyn.serving.versions.predictor import VersionName
from modyn.testing.waiting import PATIENCE_S

SIGNATURE = ModelSignature(
    (TensorSignature("input", "FP32", (-1, 3)),),
    (TensorSignature("sum", "FP32", (-1,)), TensorSignature("version", "INT64", (-1, 4))),
)


class FakePredictor:
    """Returns for each row its sum, and four columns with the number of the version.

    `batches` has the rows of each batch. `before` is called with the inputs before each answer; `before` may wait or raise an error.
    """

    def __init__(
        self, version: int = 1, before: Callable[[Tensors], object] = lambda _: None, signature: ModelSignature = SIGNATURE
    ) -> None:
        self.version, self.before, self.signature = version, before, signature
        self.batches: list[int] = []
        self.closed = threading.Event()

    def predict(self, inputs: Tensors) -> Tensors:
        """Return the answer. A call after `close` is an error."""
        assert not self.closed.is_set(), f"version {self.version} was closed and predicts"
        rows = len(inputs["input"])
        self.batches.append(rows)
        self.before(inputs)
        version = np.empty((rows, 4), np.int64)
        # The answer is built in steps, so that an answer in which two versions are mixed would be visible.
        for column in range(4):
            version[:, column] = self.version
        return {"sum": inputs["input"].sum(axis=1, dtype=np.float32), "version": version}

    def check(self, inputs: Tensors) -> None:
        """Accept all inputs. A call after `close` is an error."""
        assert not self.closed.is_set(), f"version {self.version} was closed and checks inputs"

    def close(self) -> None:
        """Record that the predictor was closed."""
        self.closed.set()


class PredictorGate:
    """Blocks predictors until the gate is opened. Use it as `before` of a FakePredictor. `reached` is set when a predictor waits."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, _: Tensors) -> None:
        """Wait until the gate is open."""
        self.reached.set()
        assert self.open.wait(PATIENCE_S), "the gate was not opened"


class FakeVersions:
    """Loads a FakePredictor for each version whose name is a number up to `newest`. `made` has the predictors by version.

    Args: load_s: seconds that loading takes.
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
