"""Predictions over model versions by the Open Inference Protocol, version 2.

Bottom up: `signature`, `predictor`; `batch_queue`, `batcher`; `routing`, `versions`, `shadow`, `model_server`; `json_tensors`, `observation_join`,
`observations`, `observation_router`; `addresses`, `http_app`, `http_connection`, `http_server`, `grpc_service`; `torch_predictor`, `promoted`,
`served_model`, `run_part`, `closing`, `process`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from modyn.errors import ConfigError

_EXTRA: Final = ("httptools", "orjson", "uvicorn", "uvloop")
"""Packages of `modyn[serving]`."""


def check_installed() -> None:
    """Check, before `modyn.serving.process` is imported, that it can be. Raises: ConfigError: a package is not installed."""
    for name in _EXTRA:
        if find_spec(name) is None:
            raise ConfigError(f"serving needs {name}, which is not installed; `pip install modyn[serving]` brings it")
