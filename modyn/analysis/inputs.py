"""What the InputGuard of a run has seen of the inputs of each training, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pandas as pd

from modyn.supervisor.client import TriggerRecord

_COLUMNS: Final = {
    "trigger_id": "int64",
    "timestamp": "int64",
    "column": "object",
    "rows": "int64",
    "missing": "float64",
    "unlike": "float64",
}


def inputs_table(triggers: Sequence[TriggerRecord]) -> pd.DataFrame:
    """Return a row for each training and column of its inputs: stream time of its trigger; `rows`, and the shares of them that are `missing`, and
    `unlike` all rows before: outside of their range, or of a new category. Without rows where the pipeline has no InputGuard."""
    rows = [
        (trigger.trigger_id, trigger.fired_at_timestamp, column, found["rows"], found["missing"], found["unlike"])
        for trigger in sorted(triggers, key=lambda trigger: trigger.trigger_id)
        for column, found in (trigger.training_result.get("preprocessing") or {}).get("inputs", {}).items()
    ]
    return pd.DataFrame(rows, columns=list(_COLUMNS)).astype(_COLUMNS)
