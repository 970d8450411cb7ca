"""The chart of how a cache could be split: what every split between encoded, decoded and augmented samples is predicted to reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from modyn.analysis.figure import ACTIVE, NEUTRAL, TRAINED, Figure
from modyn.cache.performance_model import SPLITS, Split, SplitPredictions

SPLITS_NOTE: Final = (
    "Predicted throughput of every split of the cache, in steps of 1 %. Each corner is a cache of one form. Outlined splits are as good as the best, "
    "up to 0.001 %."
)
LEAST_RANGE: Final = 0.95
"""Colours reach down to this part of the best at least, so that splits of which it hardly matters which one is taken look alike."""


def splits_figure(predictions: SplitPredictions, marked: Mapping[str, Split] | None = None) -> Figure:
    """Draw the throughput over all splits as a triangle. Args: marked: splits by name that are shown beside the best, such as the one in use."""
    splits = np.array([(split.augmented, split.encoded, split.decoded) for split in predictions.ties()])
    values = predictions.samples_per_s
    regrets = 100 * (1 - values / predictions.best_samples_per_s)
    everywhere = _points(SPLITS[:, [2, 0, 1]]) | {
        "showlegend": False,
        "customdata": np.column_stack([values.round(1), regrets.round(3)]).tolist(),
        "hovertemplate": "%{b}-%{c}-%{a}<br>%{customdata[0]:,.0f} samples/s, %{customdata[1]:.2f} % below the best<extra></extra>",
        "marker": {
            "symbol": "hexagon",
            "size": 7,
            "color": values.round(1).tolist(),
            "cmin": min(float(values.min()), LEAST_RANGE * predictions.best_samples_per_s),
            "cmax": predictions.best_samples_per_s,
            "colorscale": "Viridis",
            "colorbar": {"title": {"text": "samples/s"}, "tickformat": ",.4~r"},
        },
    }
    silent = {"hoverinfo": "skip", "cliponaxis": False}
    traces = [everywhere]
    if len(splits) > 1:
        outline = {"symbol": "hexagon-open", "size": 6, "color": TRAINED}
        traces.append(_points(splits) | silent | {"name": f"{len(splits):,} as good as the best", "marker": outline})
    shown = {"best": predictions.best, **(marked or {})}
    for (name, split), colour in zip(shown.items(), [TRAINED, *[ACTIVE, NEUTRAL] * len(shown)], strict=False):
        mark = {"symbol": "star-diamond", "size": 14, "color": colour, "line": {"color": "white", "width": 1}}
        label = f"{name}: {split}, {predictions.of(split):,.0f} samples/s"
        traces.append(
            _points(np.array([[split.augmented, split.encoded, split.decoded]])) | silent | {"name": label, "marker": mark}
        )
    axes = {axis: {"title": {"text": f"{form}, %"}} for axis, form in _AXES.items()}
    margin = {"l": 60, "r": 20, "t": 40, "b": 40}
    return Figure(
        traces, {"height": 580, "margin": margin, "ternary": {"sum": 100, **axes}, "legend": {"orientation": "h", "y": -0.08}}
    )


_AXES: Final = {"aaxis": "augmented", "baxis": "encoded", "caxis": "decoded"}
"""Top, left and right corner."""


def _points(percents: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Args: percents: (k, 3), augmented, encoded, decoded."""
    a, b, c = percents.T.tolist()
    return {"type": "scatterternary", "mode": "markers", "a": a, "b": b, "c": c}
