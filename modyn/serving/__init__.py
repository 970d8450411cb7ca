"""Predictions over model versions by the Open Inference Protocol, version 2.

Bottom up. Predictions: `signature`, `predictor`, `infer`; `batch_queue`, `batcher`, `metrics`; `routing`, `versions`, `shadow`, `model_server`.
Labels: `observation_join`, `waiting_log`, `arrivals`, `record_log`; `observations`, `observation_router`. Protocols: `addresses`, `json_tensors`,
`http_app`, `http_connection`, `http_server`, `grpc_service`. Runs: `torch_predictor`, `column_predictor`, `promoted`; `promotion_gate`,
`auto_promotion`, `load_meter`; `served_model`, `run_part`, `closing`, `process`.
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
