"""One job of the evaluator, as a worker gets it, and the scores that it returns. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modyn.config.system import Endpoint
from modyn.dataset.connections import PayloadSource
from modyn.evaluator.outputs import OutputCache
from modyn.records import Interval


@dataclass(frozen=True, slots=True)
class EvaluationJob:
    """A model, one entry of `evaluation.datasets`, and distinct intervals."""

    model_id: int
    dataset: Mapping[str, Any]
    intervals: tuple[Interval, ...]
    device: str
    payloads: PayloadSource
    model_storage: Endpoint
    scratch: Path
    """An empty folder of this job only; removed when the job has ended."""
    decoding: str
    """Digest of how samples are decoded: equal for jobs whose models see equal inputs."""
    outputs: OutputCache | None
    """None: outputs are not kept."""


@dataclass(frozen=True, slots=True)
class Score:
    """The value of one metric over the samples of one interval; None: undefined, `note` says why."""

    interval: Interval
    metric: str
    """The label of the metric."""
    value: float | None
    note: str
    num_samples: int
    """Samples that the value was computed over."""
    num_listed: int
    """Samples in the interval when the evaluation listed them."""
