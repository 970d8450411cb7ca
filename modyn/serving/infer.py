"""A request for predictions and its answer, whichever protocol they travel by."""

from __future__ import annotations

from concurrent.futures import Future
from typing import NamedTuple, TypeVar

from modyn.errors import ModynError
from modyn.serving.signature import Tensors

T = TypeVar("T")


class InferRequest(NamedTuple):
    """A request for predictions."""

    model: str
    inputs: Tensors
    version: str | None = None
    """None: the one that serves, or the canary."""
    request_id: str = ""
    """Empty: one is made."""
    outputs: tuple[str, ...] = ()
    """Wanted, in this order; empty: all."""
    timeout_s: float | None = None


class InferAnswer(NamedTuple):
    """The answer to a request."""

    model: str
    version: str
    request_id: str
    outputs: Tensors
    """Those that were wanted, in that order."""


def settle(future: Future[T], outcome: T | ModynError) -> None:
    """Give a future the outcome that it was made for, unless it was cancelled meanwhile."""
    if future.done():
        return
    if isinstance(outcome, ModynError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
