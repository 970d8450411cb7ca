"""One job as it is sent to a worker process; known to the service, which imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modyn.config.system import Endpoint
from modyn.dataset.connections import PayloadSource
from modyn.evaluator.outputs import Room
from modyn.records import Interval


@dataclass(frozen=True, slots=True)
class Work:
    """A model, one entry of `evaluation.datasets`, and distinct intervals."""

    model_id: int
    dataset: Mapping[str, Any]
    intervals: tuple[Interval, ...]
    device: str
    payloads: PayloadSource
    model_storage: Endpoint
    scratch: Path
    """An empty folder of this job's own; it is removed when the job has ended."""
    decoding: str
    """Equal for jobs whose datasets are decoded equally."""
    room: Room | None
    """Where outputs are kept; none: nowhere."""
