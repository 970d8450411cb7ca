"""Build the event about the result of a training, and the messages for watchers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from modyn.supervisor.journal.records import TriggerRecord
from modyn.supervisor.journal.states import TriggerState
from modyn.trainer_server.client import TrainingResult, mean_error


def training_detail(trigger: TriggerRecord) -> dict[str, Any]:
    """Detail of the event that ends the training of a trigger, as documented at `EventKind.STEP`; values of 0 and empty values are left out."""
    result, counts = trigger.training_result, trigger.training_result.counts
    found: dict[str, Any] = {}
    if (tests := result.prequential) is not None and (rows := tests.rows):
        found = {"tested": sum(row.num for row in rows), f"prequential_{tests.measure}": mean_error(rows)}
    if trigger.state is TriggerState.TESTED:
        found["tests_only"] = True
    if result.rollbacks:
        found["rollbacks"] = len(result.rollbacks)
    if unusual := _unusual_inputs(result):
        found["unusual_inputs"] = list(unusual)
    if trigger.model_id is not None and counts.skipped_steps:
        found |= {"skipped_steps": counts.skipped_steps, "num_steps": counts.num_steps}
    if trigger.model_id is not None and counts.ignored_labels:
        found |= {"ignored_labels": counts.ignored_labels, "num_labels": counts.num_labels}
    return found


def training_messages(trigger: TriggerRecord) -> Iterator[str]:
    """Yield messages about a training: about rollbacks (if the training made a version), about unusual inputs, and warnings."""
    result, name = trigger.training_result, f"trigger {trigger.trigger_id}"
    jumps = [
        f"after step {each.step} the error had jumped to a loss of {each.loss:.4g}, against {each.running:.4g} before: steps resume from "
        f"the weights of step {each.to_step}"
        for each in result.rollbacks
    ]
    if jumps and trigger.model_id is not None:
        yield f"{name}: {'; '.join(jumps)}"
    if unusual := _unusual_inputs(result):
        yield f"{name}: inputs are unusual: {'; '.join(unusual)}"
    for warning in result.warnings:
        yield f"{name}: {warning}"


def _unusual_inputs(result: TrainingResult) -> tuple[str, ...]:
    return () if result.preprocessing is None else result.preprocessing.unusual or ()
