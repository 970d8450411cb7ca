"""Parameters of inference requests, with Triton's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modyn.errors import InvalidArgumentError
from modyn.serving.messages.shown import shown

_NO_SEQUENCES: Final = "each request is predicted by itself; models here keep no state between requests"
_NO_SHARED_MEMORY: Final = "values are sent in the message"
_NOT_HERE: Final = {
    **dict.fromkeys(("class_count", "classification"), "outputs are sent whole; take the greatest scores in the client"),
    **dict.fromkeys(("sequence_id", "sequence_start", "sequence_end"), _NO_SEQUENCES),
    **dict.fromkeys(("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"), _NO_SHARED_MEMORY),
}
"""Triton parameters that this server does not support, and the alternative to each. tritonclient sends `class_count` as `classification`."""


def refuse_unsupported(parameters: Mapping[str, Any], what: str) -> None:
    """Raise InvalidArgumentError if a request has a Triton parameter that this server does not support. A parameter that is 0 or false is accepted.

    Args: what: owner of the parameters, for messages.
    """
    for name, reason in _NOT_HERE.items():
        if parameters.get(name):
            raise InvalidArgumentError(f"{what} has the parameter {name}, which is not supported: {reason}; leave it out")


def timeout_of(value: object) -> float | None:
    """Convert the parameter `timeout`, in microseconds, to seconds; None: the request has no timeout. Raises InvalidArgumentError."""
    if value is None:
        return None
    if type(value) is not int or value <= 0:
        raise InvalidArgumentError(f"the parameter timeout is {shown(value)}; write a number of microseconds above 0")
    return value / 1e6
