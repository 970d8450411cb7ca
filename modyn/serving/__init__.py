"""Prediction server for model versions. The server speaks the Open Inference Protocol, version 2.

The modules, from the lowest layer to the highest: `messages/` (tensors and requests), `batch_queue` and `batcher`, `versions/` (load, route and
promote), `model_server`, `observations/` (labels that clients send back), `protocol/` (HTTP and gRPC), `run_part` (the objects of one run),
`run_server` (the process).
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from modyn.errors import ConfigError

_EXTRA: Final = ("httptools", "orjson", "uvicorn", "uvloop")
"""Packages of `modyn[serving]`."""


def check_installed() -> None:
    """Check that the packages which `modyn.serving.run_server` imports are installed. Raises: ConfigError: a package is missing."""
    for name in _EXTRA:
        if find_spec(name) is None:
            raise ConfigError(f"serving needs {name}, which is not installed; `pip install modyn[serving]` brings it")
