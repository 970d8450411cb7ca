"""What is asked of an evaluation and what comes of it: records of the service, of its client and of the results. Imports no torch.

An evaluation is one model on one entry of `evaluation.datasets`, over the intervals of one handler. Its id is derived from the request.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modyn.errors import BY_REASON, ModynError
from modyn.records import EvalInterval, JobState, RunId

EvaluationState = JobState
"""Where an evaluation stands."""


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """One model on one dataset over the intervals of one handler. Intervals may overlap; two equal ones count once."""

    run_id: RunId
    trigger_id: int
    model_id: int
    handler: str
    dataset: Mapping[str, Any]
    """One entry of `evaluation.datasets`, as written in the pipeline."""
    intervals: Sequence[EvalInterval]
    device: str = "cpu"

    @property
    def evaluation_id(self) -> str:
        """Equal for equal requests, different for others; safe as a file name."""
        asked = [self.run_id, self.trigger_id, self.model_id, self.handler, self.device, self.dataset]
        asked.append(sorted({(i.start, i.end, i.anchor) for i in self.intervals}))
        digest = hashlib.sha256(_canonical(asked).encode()).hexdigest()
        return f"{self.run_id}-{self.trigger_id}-{digest[:20]}"


@dataclass(frozen=True, slots=True)
class EvaluationStatus:
    """`error` and `error_reason` (see modyn.errors) are set once failed or stopped."""

    evaluation_id: str
    state: EvaluationState
    samples_seen: int = 0
    samples_total: int = 0
    """0 = not known yet."""
    error: str = ""
    error_reason: str = ""

    def to_error(self) -> ModynError:
        """The error that ended a failed or stopped evaluation, in its own class."""
        return BY_REASON.get(self.error_reason, ModynError)(self.error or f"evaluation {self.evaluation_id} failed")


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The value of one metric of one model on one interval. None: undefined, `note` says why."""

    run_id: RunId
    trigger_id: int
    model_id: int
    handler: str
    dataset: str
    interval: EvalInterval
    metric: str
    value: float | None
    note: str
    num_samples: int
    """Samples that the value was computed over."""


def _canonical(value: object) -> str:
    """JSON in one form only, before and after the wire: whole numbers come back from there as int."""
    text = json.dumps(value, sort_keys=True, default=str)
    return json.dumps(
        json.loads(text, parse_float=lambda n: int(float(n)) if float(n).is_integer() else float(n)), sort_keys=True
    )
