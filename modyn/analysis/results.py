"""The one reader of run results: records of the supervisor as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from modyn.evaluator.client import EvaluationResult
from modyn.supervisor.client import Run, SupervisorClient, TriggerRecord

STAGES = ("select", "train", "store", "evaluate")
"""Stages of a trigger whose seconds are reported, in the order in which they run."""

_TRIGGER_COLUMNS = [
    "trigger_id",
    "state",
    "position",
    "first_timestamp",
    "last_timestamp",
    "fired_at",
    "num_keys",
    "keys_checksum",
    "model_id",
    "parent_model_id",
    "weights_sha256",
    "started_at",
    "finished_at",
    "loss",
    *(f"{stage}_s" for stage in (*STAGES, "total")),
]
_EVALUATION_COLUMNS = [
    "trigger_id",
    "model_id",
    "handler",
    "dataset",
    "start",
    "end",
    "anchor",
    "metric",
    "value",
    "num_samples",
    "note",
]


@dataclass(frozen=True, slots=True, eq=False)
class RunResults:
    """The results of a run. Stream times are int64 seconds since 1970; columns that end in `_s` are seconds of work.

    Args: triggers: one row a trigger, in order. evaluations: one row for each model, interval, dataset and metric; `value` is NaN where undefined.
    """

    run: Run
    triggers: pd.DataFrame
    evaluations: pd.DataFrame


def read_results(client: SupervisorClient, run_id: str) -> RunResults:
    """Read the results of a run, finished or not. Raises NotFoundError for an unknown run."""
    run = client.run(run_id)
    return RunResults(run, triggers_table(client.triggers(run_id)), evaluations_table(client.results(run_id)))


def triggers_table(triggers: Sequence[TriggerRecord]) -> pd.DataFrame:
    """Return triggers as a table, one row each; numbers that are not known yet are missing."""
    rows = [
        [
            t.trigger_id,
            str(t.state),
            t.position,
            t.first_timestamp,
            t.last_timestamp,
            t.fired_at_timestamp,
            t.num_keys,
            t.keys_checksum,
            t.model_id,
            t.parent_model_id,
            t.weights_sha256,
            t.started_at,
            t.finished_at,
            t.training_result.get("loss"),
            *(t.seconds.get(stage) for stage in (*STAGES, "total")),
        ]
        for t in sorted(triggers, key=lambda t: t.trigger_id)
    ]
    table = pd.DataFrame(rows, columns=_TRIGGER_COLUMNS)
    whole = ["trigger_id", "position", "first_timestamp", "last_timestamp", "fired_at", "num_keys", "model_id", "parent_model_id"]
    fractions = ["started_at", "finished_at", "loss", *(f"{stage}_s" for stage in (*STAGES, "total"))]
    return table.astype({**dict.fromkeys(whole, "Int64"), **dict.fromkeys(fractions, "float64")})


def evaluations_table(results: Sequence[EvaluationResult]) -> pd.DataFrame:
    """Return evaluation results as a table, one row a value."""
    rows = [
        [
            r.trigger_id,
            r.model_id,
            r.handler,
            r.dataset,
            r.interval.start,
            r.interval.end,
            r.interval.anchor,
            r.metric,
            r.value,
            r.num_samples,
            r.note,
        ]
        for r in results
    ]
    table = pd.DataFrame(rows, columns=_EVALUATION_COLUMNS)
    whole = ["trigger_id", "model_id", "start", "end", "anchor", "num_samples"]
    table = table.astype({**dict.fromkeys(whole, "int64"), "value": "float64"})
    return table.sort_values(["handler", "dataset", "metric", "trigger_id", "start"], ignore_index=True)
