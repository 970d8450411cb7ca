"""The one reader of run results: records of the supervisor as tables, and what the run cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import pandas as pd

from modyn.evaluator.client import EvaluationResult
from modyn.supervisor.client import Run, SupervisorClient, TriggerRecord

STAGES = ("select", "train", "store", "evaluate")
"""Stages of a trigger whose seconds are reported, in the order in which they run."""

_STAGE_SECONDS = tuple(f"{stage}_s" for stage in (*STAGES, "total"))
_TRIGGER_COLUMNS = [
    *("trigger_id", "state", "position", "first_timestamp", "last_timestamp", "fired_at", "num_keys", "keys_checksum"),
    *("model_id", "parent_model_id", "weights_sha256", "started_at", "finished_at", "loss", *_STAGE_SECONDS),
]
_EVALUATION_COLUMNS = [
    *("trigger_id", "model_id", "handler", "dataset", "start", "end", "anchor", "metric", "value", "num_samples", "note")
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
        {**_values(t), "state": str(t.state), "fired_at": t.fired_at_timestamp, "loss": t.training_result.get("loss")}
        | {f"{stage}_s": seconds for stage, seconds in t.seconds.items()}
        for t in sorted(triggers, key=lambda t: t.trigger_id)
    ]
    whole = ["trigger_id", "position", "first_timestamp", "last_timestamp", "fired_at", "num_keys", "model_id", "parent_model_id"]
    fractions = ["started_at", "finished_at", "loss", *_STAGE_SECONDS]
    types = {**dict.fromkeys(whole, "Int64"), **dict.fromkeys(fractions, "float64")}
    return pd.DataFrame(rows, columns=_TRIGGER_COLUMNS).astype(types)


def evaluations_table(results: Sequence[EvaluationResult]) -> pd.DataFrame:
    """Return evaluation results as a table, one row a value."""
    table = pd.DataFrame([_values(r) | _values(r.interval) for r in results], columns=_EVALUATION_COLUMNS)
    whole = ["trigger_id", "model_id", "start", "end", "anchor", "num_samples"]
    table = table.astype({**dict.fromkeys(whole, "int64"), "value": "float64"})
    return table.sort_values(["handler", "dataset", "metric", "trigger_id", "start"], ignore_index=True)


def _values(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a pipeline (SIGMOD'25, section 3.1, "Cost trade-off").

    The number of triggers compares pipelines with one selection policy, the number of samples all policies; seconds include everything but
    need an otherwise idle machine.
    """

    num_triggers: int
    num_samples: int
    """Samples trained on, summed over the triggers; further epochs do not count."""
    wall_s: float
    """From submission to the end of the run, pauses between stop and resume included."""
    by_stage_s: dict[str, float]
    """Seconds of work by stage, summed over the triggers. Evaluation overlaps the next training: their sum may exceed `wall_s`."""


def cost(results: RunResults) -> Cost:
    """Return the cost of a run so far."""
    triggers, end, started = results.triggers, results.run.finished_at, results.run.submitted_at
    trained = triggers[triggers["model_id"].notna()]
    last = triggers["finished_at"].max() if len(triggers) else started
    return Cost(
        num_triggers=len(trained),
        num_samples=int(trained["num_keys"].sum()),
        wall_s=float((end if end is not None else last if pd.notna(last) else started) - started),
        by_stage_s={stage: float(triggers[f"{stage}_s"].fillna(0.0).sum()) for stage in STAGES},
    )
