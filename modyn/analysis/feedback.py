"""Tables of the scores of trainings, with one row for each sample and epoch, or one row for each epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from modyn.errors import NotFoundError
from modyn.records import FeedbackHeader, FeedbackRows, Float32Array, Int64Array, RunId
from modyn.selector.client import SelectorClient


def feedback_table(selector: SelectorClient, run_id: str, trigger_id: int | None = None) -> pd.DataFrame:
    """Return the scores of a run's trainings, in the order in which the trainings saw the samples: trigger_id, epoch, key, and a column for each
    score. A score of several numbers has several columns (`gradient_32.0`).

    Args: trigger_id: return only scores of this trigger. Raises: NotFoundError: the run does not exist, or the trigger has no scores.
    """
    parts = [_columns(header, rows) for header in _headers(selector, run_id, trigger_id) for rows in _chunks(selector, header)]
    return (
        pd.concat(parts, ignore_index=True) if parts else pd.DataFrame({"trigger_id": [], "epoch": [], "key": []}, dtype="int64")
    )


def feedback_summary(selector: SelectorClient, run_id: str) -> pd.DataFrame:
    """Return a row for each trigger, epoch and single-number score: number of samples, mean, minimum, median and maximum.

    If no sample of an epoch has a score, the row is omitted. Rows are read epoch by epoch, so that memory is bounded by the largest epoch.

    Raises: NotFoundError: the run does not exist.
    """
    rows = [
        {"trigger_id": header.trigger_id, "epoch": epoch, **line}
        for header in _headers(selector, run_id, None)
        for epoch, values in _epochs(selector.feedback(header), [name for name, width in header.widths.items() if width == 1])
        for line in _statistics(values)
    ]
    names = ["trigger_id", "epoch", "score", "num_samples", "mean", "least", "median", "greatest"]
    return pd.DataFrame(rows, columns=names)


def _epochs(chunks: Iterable[FeedbackRows], names: Sequence[str]) -> Iterator[tuple[int, dict[str, Float32Array]]]:
    """Return the single-number scores of each epoch, (n,) by name. Args: chunks: scores in the order of the training."""
    current, held = -1, list[FeedbackRows]()
    for chunk in chunks:
        ends = [*(np.flatnonzero(np.diff(chunk.epochs)) + 1).tolist(), len(chunk)]
        for first, stop in pairwise([0, *ends]):
            if first < stop and int(chunk.epochs[first]) != current:
                if held:
                    yield current, _joined(held, names)
                current, held = int(chunk.epochs[first]), []
            held.append(chunk.slice(first, stop))
    if held:
        yield current, _joined(held, names)


def _joined(parts: Sequence[FeedbackRows], names: Sequence[str]) -> dict[str, Float32Array]:
    return {name: np.concatenate([part.scores[name][:, 0] for part in parts]) for name in names}


def _statistics(scores: Mapping[str, Float32Array]) -> Iterator[dict[str, Any]]:
    for name, values in scores.items():
        known = values[~np.isnan(values)].astype(np.float64)
        if len(known):
            statistics = {"mean": known.mean(), "least": known.min(), "median": np.median(known), "greatest": known.max()}
            yield {"score": name, "num_samples": len(known), **statistics}


def score_columns(rows: FeedbackRows, kept: slice | Int64Array = slice(None)) -> dict[str, np.ndarray[Any, Any]]:
    """Return a column of keys and a column for each score. A score of several numbers has several columns. Args: kept: rows whose scores are
    returned."""
    columns: dict[str, np.ndarray[Any, Any]] = {"key": rows.keys[kept]}
    for name, values in rows.scores.items():
        width = values.shape[1]
        names = [name] if width == 1 else [f"{name}.{at}" for at in range(width)]
        columns |= {column: values[kept, at] for at, column in enumerate(names)}
    return columns


def _headers(selector: SelectorClient, run_id: str, trigger_id: int | None) -> list[FeedbackHeader]:
    found = selector.feedback_headers(RunId(run_id))
    if trigger_id is None:
        return found
    found = [header for header in found if header.trigger_id == trigger_id]
    if not found:
        raise NotFoundError(
            f"the training of trigger {trigger_id} of run '{run_id}' has sent no scores: set selection_strategy.keep_scores: true before a run; "
            "`modyn show RUN --scores` lists the triggers that have scores"
        )
    return found


def _chunks(selector: SelectorClient, header: FeedbackHeader) -> Iterator[FeedbackRows]:
    """Yield the rows of a training in chunks. If there are no rows, yield an empty chunk with the same columns."""
    yield from selector.feedback(header)
    nothing = {name: np.zeros((0, width), np.float32) for name, width in header.widths.items()}
    yield FeedbackRows(np.zeros(0, np.int64), np.zeros(0, np.int32), nothing)


def _columns(header: FeedbackHeader, rows: FeedbackRows) -> pd.DataFrame:
    return pd.DataFrame({"trigger_id": header.trigger_id, "epoch": rows.epochs.astype(np.int64), **score_columns(rows)})
