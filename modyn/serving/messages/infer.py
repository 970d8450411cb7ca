"""Request for predictions and its answer, the same for all protocols."""

from __future__ import annotations

from concurrent.futures import Future
from typing import NamedTuple, TypeVar

from modyn.errors import ModynError
from modyn.serving.messages.signature import Tensors

T = TypeVar("T")


class InferRequest(NamedTuple):
    """A request for predictions."""

    model: str
    inputs: Tensors
    version: str | None = None
    """Requested version; None: the serving version or the canary answers."""
    request_id: str = ""
    """Id of the request; empty: the server makes an id."""
    outputs: tuple[str, ...] = ()
    """Names of the requested outputs, in this order; empty: all."""
    timeout_s: float | None = None


class InferAnswer(NamedTuple):
    """The answer to a request."""

    model: str
    version: str
    request_id: str
    outputs: Tensors
    """The requested outputs, in the order of the request."""


def settle(future: Future[T], outcome: T | ModynError) -> None:
    """Set the outcome of a future, unless it was cancelled."""
    if future.done():
        return
    if isinstance(outcome, ModynError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
