"""What the InputGuard of a training has found unusual among its inputs, as the journal has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from modyn.supervisor.records import TriggerRecord


def input_detail(trigger: TriggerRecord) -> dict[str, Any]:
    """What the event of a training says of its inputs: what is `unusual_inputs`, a clause for each column; nothing if all is usual."""
    preprocessing: Mapping[str, Any] = trigger.training_result.get("preprocessing") or {}
    found = preprocessing.get("unusual") or []
    return {"unusual_inputs": found} if found else {}


def input_message(trigger: TriggerRecord) -> str:
    """What watchers are shown of a trigger whose inputs are unusual; empty: they are not."""
    found = input_detail(trigger).get("unusual_inputs")
    return f"trigger {trigger.trigger_id}: inputs are unusual: {'; '.join(found)}" if found else ""
