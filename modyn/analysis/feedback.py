"""What trainings scored, as tables: one row for each sample and epoch, or one for each epoch."""

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
    """Return what the trainings of a run have scored, in the order in which they saw the samples: trigger_id, epoch, key, and by name a
    column for each score, of several numbers one for each (`gradient_32.0`).

    Args: trigger_id: only of this trigger. Raises: NotFoundError: there is no such run, or the trigger has no scores.
    """
    parts = [_columns(header, rows) for header in _headers(selector, run_id, trigger_id) for rows in _chunks(selector, header)]
    return (
        pd.concat(parts, ignore_index=True) if parts else pd.DataFrame({"trigger_id": [], "epoch": [], "key": []}, dtype="int64")
    )


def feedback_summary(selector: SelectorClient, run_id: str) -> pd.DataFrame:
    """Return for each trigger, epoch and score of one number how many samples it has and its mean, least, median and greatest value.

    A score that no sample of an epoch has is left out. Rows are read epoch by epoch: memory is bounded by the largest one.

    Raises: NotFoundError: there is no such run.
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
    """The scores of one number of each epoch, (n,) by name. Args: chunks: in the order of the training."""
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
    """Return the key and a column for each score, of several numbers one for each. Args: kept: of these rows."""
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
            f"the training of trigger {trigger_id} of run '{run_id}' has sent no scores: set selection_strategy.keep_scores: true before a run, "
            "or see by `modyn show RUN --scores` which triggers have some"
        )
    return found


def _chunks(selector: SelectorClient, header: FeedbackHeader) -> Iterator[FeedbackRows]:
    """The rows, or none with its columns."""
    yield from selector.feedback(header)
    nothing = {name: np.zeros((0, width), np.float32) for name, width in header.widths.items()}
    yield FeedbackRows(np.zeros(0, np.int64), np.zeros(0, np.int32), nothing)


def _columns(header: FeedbackHeader, rows: FeedbackRows) -> pd.DataFrame:
    return pd.DataFrame({"trigger_id": header.trigger_id, "epoch": rows.epochs.astype(np.int64), **score_columns(rows)})
