"""Chart of the sources of training samples: storage, or a tier of the cache."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from modyn.analysis.charts.bins import Bins, label
from modyn.analysis.charts.figure import ACTIVE, NEUTRAL, TRAINED, Figure
from modyn.analysis.results import CACHE_WORK_COLUMNS, CACHED_COLUMNS

SOURCES_NOTE: Final = (
    "Source of the samples of each training: read from storage, or from the cache as stored (encoded), decoded or augmented. "
    "The first training on samples fills the cache."
)
_COLOURS: Final = {"storage": NEUTRAL, "encoded": "#8250df", "decoded": ACTIVE, "augmented": TRAINED}


def sources_table(triggers: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each finished training: trigger_id, and number of samples by source, int64. There are no rows if no cache served samples.

    Args: triggers: the table of `read_results`.
    """
    trained = triggers[triggers["num_trained"].notna()]
    cached = trained[list(CACHED_COLUMNS)].fillna(0).astype("int64")
    if not cached.to_numpy().any():
        trained, cached = trained.iloc[:0], cached.iloc[:0]
    # The difference may be negative, because a bad sample from the cache counts as cached but not as loaded.
    storage = (trained["num_loaded"].astype("int64") - cached.sum(axis=1)).clip(lower=0)
    table = pd.DataFrame({"trigger_id": trained["trigger_id"].astype("int64"), "storage": storage})
    return table.assign(**{name.removeprefix("cached_"): cached[name] for name in CACHED_COLUMNS}).reset_index(drop=True)


def sources_note(triggers: pd.DataFrame) -> str:
    """Return the note of the chart, with the decodings per served sample and the number of evictions. Args: triggers: the table of `read_results`."""
    table = sources_table(triggers)
    for_cache, evicted = (int(triggers[name].fillna(0).sum()) for name in CACHE_WORK_COLUMNS)
    served = int(table[list(_COLOURS)].to_numpy().sum())
    decoded = int(table[["storage", "encoded"]].to_numpy().sum()) + for_cache
    text = f"{SOURCES_NOTE} {decoded / served:.2f} samples were decoded for each served one" if served else SOURCES_NOTE
    text += f"; {for_cache:,} samples were decoded only for the cache." if served else ""
    return text + (f" Samplers evicted {evicted:,} values from the cache." if evicted else "")


def sources_figure(triggers: pd.DataFrame) -> Figure | None:
    """Draw numbers of samples by source as stacked bars. A bar is one training, or the mean of a bin of trainings. Returns None if no cache served
    samples.

    Args: triggers: the table of `read_results`.
    """
    table = sources_table(triggers)
    if table.empty:
        return None
    bins = Bins(len(table))
    trigger_ids = table["trigger_id"].to_numpy()
    firsts, lasts = trigger_ids[bins.starts], trigger_ids[bins.ends]
    means = table.groupby(bins.of(np.arange(len(table))))[list(_COLOURS)].mean()
    shared = {
        "type": "bar",
        "x": firsts.tolist(),
        "hovertext": [label("trigger", str(first), str(last)) for first, last in zip(firsts, lasts, strict=True)],
    }
    bars = [
        {**shared, "y": means[source].tolist(), "name": source, "marker": {"color": colour}}
        for source, colour in _COLOURS.items()
        if means[source].any()
    ]
    axes = {"xaxis": {"title": {"text": "trigger"}}, "yaxis": {"title": {"text": "samples"}}}
    return Figure(bars, {"barmode": "stack", "height": 300, **axes})
