"""A chart of the report for plotly.js, and functions that charts share."""

from __future__ import annotations

import html
import json
import math
import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from modyn.config.durations import format_timestamp

ACTIVE, TRAINED, NEUTRAL = "#1f6feb", "#d9822b", "#6e7781"

_TAG: Final = re.compile(r"<(?!br>|/?extra>)")
_AXIS: Final = {"automargin": True, "ticks": "", "gridcolor": "#ebf0f8", "zerolinecolor": "#ebf0f8", "title": {"standoff": 15}}
_LAYOUT: Final = {
    "template": {"layout": {"xaxis": _AXIS, "yaxis": _AXIS, "font": {"color": "#2a3f5f"}, "autotypenumbers": "strict"}},
    "margin": {"l": 60, "r": 20, "t": 20, "b": 40},
    "legend": {"orientation": "h", "y": 1.12},
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart for plotly.js: its traces and its layout. Missing values are None, never NaN."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]
    words: str = ""
    """Description for people who cannot see the chart; empty if a table of the page has the same values."""

    def html(self, title: str = "") -> str:
        """Return the HTML of the chart, for a page that has loaded plotly.js. Args: title: text that screen readers read before `words`."""
        parts = (self.data, _LAYOUT | self.layout, {"displaylogo": False, "responsive": True})
        chart = ", ".join(json.dumps(part, allow_nan=False) for part in parts)
        # User text must not end the script element or contain a tag, because plotly.js would render a link. Only line breaks and hover tags stay.
        chart = _TAG.sub("&lt;", chart).replace("<", "\\u003c")
        label = html.escape(". ".join(part for part in (title, self.words) if part))
        return f"<div role='img' aria-label='{label}'></div><script>Plotly.newPlot(document.currentScript.previousElementSibling, {chart})</script>"


def right_axis(title: str) -> dict[str, Any]:
    """Return the layout of a second value axis, which starts at 0 and has its own ticks. Its traces need `"yaxis": "y2"`."""
    shape = {"overlaying": "y", "side": "right", "showgrid": False, "rangemode": "tozero", "tickmode": "auto"}
    return {"title": {"text": title}, **shape}


def known(values: pd.Series[Any] | NDArray[np.float64]) -> list[Any]:
    """Convert values to Python types. Missing and infinite values become None, because JSON has no such values."""
    return [None if pd.isna(value) or value in (math.inf, -math.inf) else value for value in values.tolist()]


def dates(timestamps: pd.Series[Any]) -> list[str]:
    """Format stream times for plotly.js."""
    return [format_timestamp(value) for value in timestamps]
