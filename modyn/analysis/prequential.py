"""The prequential error of a run that learns online: of each new sample before it was trained on, over the whole stream, windowed and faded.

Source: Gama, Sebastião and Rodrigues: On evaluating stream learning algorithms, Machine Learning 90, 2013.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from modyn.supervisor.client import TriggerRecord

WINDOW: Final = 1000
"""Samples that the windowed error is the mean of, and after which a sample counts 1/e in the faded one."""
_MEASURES: Final = ("loss", "error")
_COLUMNS: Final = {
    "trigger_id": "int64",
    "timestamp": "int64",
    "tested": "int64",
    "num": "int64",
    **{f"{kind}{measure}": "float64" for measure in _MEASURES for kind in ("", "cumulated_", "windowed_", "faded_")},
}


def prequential_table(triggers: Sequence[TriggerRecord], window: int = WINDOW) -> pd.DataFrame:
    """Return one row for each step of a run, or for some in a row where there are many.

    Columns: trigger_id and stream time of its trigger; `tested` samples up to here; `num` of this row; the mean `loss` and `error` (share that was
    classified wrongly; missing where labels are no classes) of the row; and for both `cumulated_`, the mean over all `tested`; `windowed_`,
    over the newest rows that have `window` samples together; `faded_`, in which a sample that k others came after weighs (1 - 1 / window)^k. Means
    are over the rows whose sum is a finite number: those that a model which has diverged has no loss for count in `tested` alone.
    """
    rows = [
        (trigger.trigger_id, trigger.fired_at_timestamp, num, loss, error)
        for trigger in sorted(triggers, key=lambda trigger: trigger.trigger_id)
        if (found := trigger.training_result.get("prequential")) is not None
        for num, loss, error in zip(found["num"], found["loss"], found.get("errors") or [np.nan] * len(found["num"]), strict=True)
    ]
    table = pd.DataFrame(rows, columns=["trigger_id", "timestamp", "num", "loss", "error"])
    num = table["num"].to_numpy(np.int64)
    table["tested"] = np.cumsum(num)
    for measure in _MEASURES:
        found = table[measure].to_numpy(np.float64)
        is_known = np.isfinite(found)
        sums, counts = np.where(is_known, found, 0.0), np.where(is_known, num, 0)
        table[measure] = _divided(np.where(is_known, found, np.nan), num)
        table[f"cumulated_{measure}"] = _divided(np.cumsum(sums), np.cumsum(counts))
        table[f"windowed_{measure}"] = _windowed(sums, counts, window)
        table[f"faded_{measure}"] = _faded(sums, counts, window)
    return table[list(_COLUMNS)].astype(_COLUMNS)


def _windowed(sums: NDArray[np.float64], num: NDArray[np.int64], window: int) -> NDArray[np.float64]:
    """The mean over the newest rows that reach `window` samples."""
    ends, totals = np.cumsum(num), np.concatenate([[0.0], np.cumsum(sums)])
    starts = np.maximum(np.searchsorted(ends, ends - window, "right"), 0)
    before = np.concatenate([[0], ends])
    return _divided(totals[1:] - totals[starts], ends - before[starts])


def _divided(sums: NDArray[np.float64], num: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sums by numbers; NaN where there is nothing to divide by."""
    means = np.full(len(sums), np.nan)
    np.divide(sums, num, out=means, where=num > 0)
    return means


def _faded(sums: NDArray[np.float64], num: NDArray[np.int64], window: int) -> NDArray[np.float64]:
    """The mean with fading factor 1 - 1 / window a sample; the samples of a row fade together."""
    faded, error, weight = np.empty(len(sums)), 0.0, 0.0
    for row, (added, count) in enumerate(zip(sums.tolist(), num.tolist(), strict=True)):
        kept = (1 - 1 / window) ** count
        error, weight = error * kept + added, weight * kept + count
        faded[row] = error / weight if weight else np.nan
    return faded
