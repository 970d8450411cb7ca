"""What goes to a training worker and what comes back. Imports no torch, unlike the worker's own code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from modyn.config.system import SystemConfig
from modyn.trainer_server.client import TrainingRequest


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A request, and the installation that it belongs to."""

    request: TrainingRequest
    config: SystemConfig


@dataclass(frozen=True, slots=True)
class Trained:
    """What came out. `result` is what was stored with the model."""

    model_id: int
    weights_sha256: str
    result: Mapping[str, Any]
