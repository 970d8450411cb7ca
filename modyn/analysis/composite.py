"""Evaluation matrix, composite models and pipeline score, as defined in section 3.1 of the SIGMOD'25 paper. Pure functions on tables."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Literal

import numpy as np
import pandas as pd

Kind = Literal["active", "trained"]


@dataclass(frozen=True, slots=True)
class Series:
    """One evaluation matrix: the intervals of one handler on one dataset, scored by one metric."""

    handler: str
    dataset: str
    metric: str


def series_of(evaluations: pd.DataFrame) -> list[Series]:
    """Return the series that a run evaluated, in alphabetical order."""
    found = evaluations[["handler", "dataset", "metric"]].drop_duplicates().sort_values(["handler", "dataset", "metric"])
    return [Series(*row) for row in found.itertuples(index=False)]


def evaluation_matrix(evaluations: pd.DataFrame, series: Series) -> pd.DataFrame:
    """Return models (rows, trigger id) × intervals (columns: start, end, anchor). NaN where a model has no score.

    Source: SIGMOD'25, section 3.1.
    """
    chosen = evaluations[(evaluations[["handler", "dataset", "metric"]] == list(astuple(series))).all(axis=1)]
    cells = chosen.set_index(["trigger_id", "start", "end", "anchor"])["value"]
    return cells.unstack(["start", "end", "anchor"]).sort_index().sort_index(axis=1)


def composite_model(triggers: pd.DataFrame, anchors: np.ndarray[tuple[int], np.dtype[np.int64]], kind: Kind) -> list[int | None]:
    """Return for each anchor (int64 seconds) the trigger id of the model that answers there, None where there is none.

    active: the newest model whose training data ends before the anchor.
    trained: the model after the active one, or the last if there is none after it: it was trained on data of the interval. Where no model
    is active yet it is the first, which is being trained then.
    """
    trained = triggers[triggers["model_id"].notna()].sort_values("trigger_id")
    if trained.empty:
        return [None] * len(anchors)
    ids = trained["trigger_id"].astype("int64").to_numpy()
    # Late samples can make a trigger's data end before that of the trigger before it; the newest model is still the one in use.
    ends = trained["last_timestamp"].astype("int64").to_numpy()
    answers: list[int | None] = []
    for anchor in anchors:
        before = np.flatnonzero(ends < anchor)
        active = int(before[-1]) if len(before) else -1
        chosen = active if kind == "active" else min(active + 1, len(ids) - 1)
        answers.append(int(ids[chosen]) if chosen >= 0 else None)
    return answers


def composite_performance(matrix: pd.DataFrame, triggers: pd.DataFrame, kind: Kind) -> pd.DataFrame:
    """Return the scores of the composite model: columns start, end, anchor, trigger_id, value, one row an interval.

    trigger_id is missing where no model answers; value is NaN where there is no score.
    """
    intervals = matrix.columns.to_frame(index=False)
    chosen = composite_model(triggers, intervals["anchor"].to_numpy(np.int64), kind)
    values = [
        float(matrix.at[trigger, column]) if trigger is not None and trigger in matrix.index else np.nan  # type: ignore[arg-type]
        for trigger, column in zip(chosen, matrix.columns, strict=True)
    ]
    return intervals.assign(trigger_id=pd.array(chosen, dtype="Int64"), value=np.array(values, np.float64))


def pipeline_score(performance: pd.DataFrame) -> float:
    """Return the mean over the intervals that have a score; NaN if none has."""
    scored = performance["value"].dropna()
    return float(scored.mean()) if len(scored) else float("nan")


def scores(triggers: pd.DataFrame, evaluations: pd.DataFrame) -> pd.DataFrame:
    """Return the pipeline scores of all series: columns handler, dataset, metric, active, trained, intervals (how many have an active model)."""
    rows = []
    for series in series_of(evaluations):
        matrix = evaluation_matrix(evaluations, series)
        active, trained = (composite_performance(matrix, triggers, kind) for kind in ("active", "trained"))
        answered = int(active["value"].notna().sum())
        rows.append([*astuple(series), pipeline_score(active), pipeline_score(trained), answered, len(active)])
    return pd.DataFrame(rows, columns=["handler", "dataset", "metric", "active", "trained", "scored_intervals", "intervals"])
