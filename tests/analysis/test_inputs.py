"""Statistics of observed inputs, as a table."""

from __future__ import annotations

from modyn.analysis.results import inputs_table
from modyn.supervisor.journal.records import TriggerRecord
from modyn.supervisor.journal.states import TriggerState
from modyn.trainer_server.client import TrainingResult

SHARES = {"rows": 8, "missing": 0.25, "unlike": 0.5}


def trigger(number: int, inputs: dict[str, dict[str, float]] | None) -> TriggerRecord:
    result = {} if inputs is None else {"preprocessing": {"rows": 8, "inputs": inputs}}
    return TriggerRecord(
        number, 8 * number, 0, 7, 7 + number, TriggerState.TRAINED, 0.0, training_result=TrainingResult.from_mapping(result)
    )


def test_each_training_and_column_is_a_row() -> None:
    table = inputs_table([trigger(1, {"age": SHARES, "site": {**SHARES, "unlike": 0.0}}), trigger(0, None)])
    assert table.to_dict("records") == [
        {"trigger_id": 1, "timestamp": 8, "column": "age", **SHARES},
        {"trigger_id": 1, "timestamp": 8, "column": "site", **SHARES, "unlike": 0.0},
    ]
    assert inputs_table([]).empty
