"""Table of the counts of a run's InputGuard for the inputs of each training."""

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
    """Return a row for each training and column of its inputs: stream time of the trigger, number of `rows`, and the shares of `missing` and `unlike`
    values. A value is unlike if it is outside the range of all earlier values, or is a new category. If the pipeline has no InputGuard, the table is
    empty."""
    rows = [
        (trigger.trigger_id, trigger.fired_at_timestamp, column, found.rows, found.missing, found.unlike)
        for trigger in sorted(triggers, key=lambda trigger: trigger.trigger_id)
        if (preprocessing := trigger.training_result.preprocessing) is not None
        for column, found in (preprocessing.inputs or {}).items()
    ]
    return pd.DataFrame(rows, columns=list(_COLUMNS)).astype(_COLUMNS)
