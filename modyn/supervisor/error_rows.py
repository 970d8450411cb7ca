"""What trainings of steps have tested: the rows of their results that errors are counted by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from modyn.supervisor.records import TriggerRecord
from modyn.supervisor.states import TriggerState

_PREQUENTIAL: Final = "prequential"
"""In the result of a training of steps: what was tested, step by step."""

_GUARD: Final = "step_guard"
"""In the same result, with `online.rollback`: what was undone."""


class ErrorRow(NamedTuple):
    """Samples that were tested together: how many, and the sum of their errors, or of their losses."""

    num: int
    total: float


def are_errors(training_result: Mapping[str, Any]) -> bool:
    """Whether the rows of a training of steps are of errors, 0 or 1 a sample; otherwise they are of losses."""
    return "errors" in (training_result.get(_PREQUENTIAL) or {})


def error_rows(training_result: Mapping[str, Any]) -> list[ErrorRow]:
    """The rows of a training of steps, in order, without those whose sum is no number; empty: it is of another training."""
    found = training_result.get(_PREQUENTIAL) or {"num": [], "loss": []}
    sums = found["errors" if are_errors(training_result) else "loss"]
    return [ErrorRow(int(num), float(total)) for num, total in zip(found["num"], sums, strict=True) if math.isfinite(total)]


def mean(rows: Sequence[ErrorRow]) -> float:
    """The mean over the samples of rows, of which there is one at least."""
    return sum(row.total for row in rows) / sum(row.num for row in rows)


def error_detail(trigger: TriggerRecord) -> dict[str, Any]:
    """What the event of a training says of steps: the samples that were `tested`, and their mean `prequential_error` or `prequential_loss`; whether
    it `tests_only`; how many `rollbacks` there were, if any. Nothing of other trainings."""
    rows, measure = error_rows(trigger.training_result), "error" if are_errors(trigger.training_result) else "loss"
    found: dict[str, Any] = {"tested": sum(row.num for row in rows), f"prequential_{measure}": mean(rows)} if rows else {}
    if trigger.state is TriggerState.TESTED:
        found["tests_only"] = True
    made = rollbacks(trigger.training_result)
    return {**found, "rollbacks": len(made)} if made else found


def rollbacks(training_result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The times that a training of steps went back to a snapshot, in order."""
    found: list[Mapping[str, Any]] = (training_result.get(_GUARD) or {}).get("rollbacks") or []
    return found


def rollback_message(trigger: TriggerRecord) -> str:
    """What watchers are shown of a trigger whose steps went back to a snapshot and made a version; empty: they did not."""
    jumps = [
        f"behind step {each['step']} the error had jumped to a loss of {each['loss']:.4g}, against {each['running']:.4g} before: steps go on from "
        f"the weights of step {each['to_step']}"
        for each in rollbacks(trigger.training_result)
    ]
    return f"trigger {trigger.trigger_id}: {'; '.join(jumps)}" if jumps else ""
