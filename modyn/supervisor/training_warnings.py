"""What trainings warn of and have counted of how they learned, as the journal has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modyn.supervisor.records import TriggerRecord


def learning_detail(trigger: TriggerRecord) -> dict[str, Any]:
    """What the event of a training says of how it learned: `skipped_steps` of `num_steps` and `ignored_labels` of `num_labels`, if there are some."""
    result: Mapping[str, Any] = trigger.training_result
    counted = {"skipped_steps": "num_steps", "ignored_labels": "num_labels"}
    return {name: result.get(name) for pair in counted.items() if result.get(pair[0]) for name in pair}


def warning_messages(trigger: TriggerRecord) -> list[str]:
    """What watchers are shown of a training that warns, a sentence for each warning."""
    return [f"trigger {trigger.trigger_id}: {warning}" for warning in trigger.training_result.get("warnings", [])]
