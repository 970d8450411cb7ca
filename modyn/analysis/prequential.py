"""The prequential error of a run with online learning: each new sample is tested before training on it. The error is computed over the whole stream,
over a window, and with fading.

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
"""Number of samples in the window of the windowed error. In the faded error, a sample has the weight 1/e after this number of later samples."""
_MEASURES: Final = ("loss", "error")
_COLUMNS: Final = {
    "trigger_id": "int64",
    "timestamp": "int64",
    "tested": "int64",
    "num": "int64",
    **{f"{kind}{measure}": "float64" for measure in _MEASURES for kind in ("", "cumulated_", "windowed_", "faded_")},
}


def prequential_table(triggers: Sequence[TriggerRecord], window: int = WINDOW) -> pd.DataFrame:
    """Return one row for each step of a run, or for several successive steps if there are many steps.

    Columns: trigger_id and stream time of the trigger; `tested`, the number of tested samples so far; `num`, the number of tested samples in this
    row; the mean `loss` and `error` of the row (error: share of wrong classes, missing if labels are not classes). Three more means of loss and of
    error have columns with a prefix: `cumulated_`, over all tested samples; `windowed_`, over the newest rows with `window` samples in total;
    `faded_`, in which a sample with k later samples has the weight (1 - 1 / window)^k. Means use only rows with a finite sum: rows of a diverged
    model count only in `tested`.
    """
    rows = [
        (trigger.trigger_id, trigger.fired_at_timestamp, num, loss, error)
        for trigger in sorted(triggers, key=lambda trigger: trigger.trigger_id)
        if (tests := trigger.training_result.prequential) is not None
        for num, loss, error in zip(tests.num, tests.loss, tests.errors or [np.nan] * len(tests.num), strict=True)
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
    """Return the mean over the newest rows that have `window` samples in all."""
    ends, totals = np.cumsum(num), np.concatenate([[0.0], np.cumsum(sums)])
    starts = np.maximum(np.searchsorted(ends, ends - window, "right"), 0)
    before = np.concatenate([[0], ends])
    return _divided(totals[1:] - totals[starts], ends - before[starts])


def _divided(sums: NDArray[np.float64], num: NDArray[np.int64]) -> NDArray[np.float64]:
    """Divide sums by numbers; the result is NaN if the number is 0."""
    means = np.full(len(sums), np.nan)
    np.divide(sums, num, out=means, where=num > 0)
    return means


def _faded(sums: NDArray[np.float64], num: NDArray[np.int64], window: int) -> NDArray[np.float64]:
    """Return the mean with the fading factor 1 - 1 / window per sample. All samples of a row have the same weight."""
    faded, error, weight = np.empty(len(sums)), 0.0, 0.0
    for row, (added, count) in enumerate(zip(sums.tolist(), num.tolist(), strict=True)):
        kept = (1 - 1 / window) ** count
        error, weight = error * kept + added, weight * kept + count
        faded[row] = error / weight if weight else np.nan
    return faded
