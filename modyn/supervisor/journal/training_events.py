"""Build the facts of the event about the result of a training, and the messages for watchers."""

from __future__ import annotations

from collections.abc import Iterator

from modyn.json_codec import sanitize
from modyn.supervisor.journal.records import TriggerRecord
from modyn.supervisor.journal.run_events import StepState, TrainStep
from modyn.supervisor.journal.states import TriggerState
from modyn.trainer_server.client import NO_RESULT, TrainingResult, mean_error


def ended_training(trigger: TriggerRecord, reason: str = "") -> TrainStep:
    """Return the facts of the event that ends the training of a trigger. Args: reason: why the training made no model."""
    result, has_model = trigger.training_result, trigger.model_id is not None
    counts = (result if has_model else NO_RESULT).counts
    rows = [] if result.prequential is None else result.prequential.rows
    means = {result.prequential.measure: mean_error(rows)} if result.prequential is not None and rows else {}
    return TrainStep(
        StepState.FINISHED,
        trigger.seconds["train"],
        model_id=trigger.model_id,
        reason=sanitize(reason),
        loss=result.losses.loss if has_model else None,
        num_skipped=trigger.num_skipped,
        skipped_steps=counts.skipped_steps,
        num_steps=counts.num_steps,
        ignored_labels=counts.ignored_labels or 0,
        num_labels=counts.num_labels or 0,
        unusual_inputs=_unusual_inputs(result),
        tested=sum(row.num for row in rows),
        prequential_error=means.get("error"),
        prequential_loss=means.get("loss"),
        tests_only=trigger.state is TriggerState.TESTED,
        rollbacks=len(result.rollbacks),
    )


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
