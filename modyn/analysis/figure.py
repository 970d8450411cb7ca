"""A chart of the report in the terms of plotly.js, and what charts have in common."""

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
    """A chart in the terms of plotly.js: its traces, and its layout. What is missing in their lists is None, never NaN."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]
    words: str = ""
    """What it shows, for those who do not see it; empty: a table of the page says it."""

    def html(self, title: str = "") -> str:
        """Return the chart for a page that has loaded plotly.js. Args: title: what a screen reader calls it, before `words`."""
        parts = (self.data, _LAYOUT | self.layout, {"displaylogo": False, "responsive": True})
        chart = ", ".join(json.dumps(part, allow_nan=False) for part in parts)
        # No text of a user ends the script, or is a tag to plotly.js, which draws links: of tags, only ends of lines and of hover texts are known.
        chart = _TAG.sub("&lt;", chart).replace("<", "\\u003c")
        label = html.escape(". ".join(part for part in (title, self.words) if part))
        return f"<div role='img' aria-label='{label}'></div><script>Plotly.newPlot(document.currentScript.previousElementSibling, {chart})</script>"


def right_axis(title: str) -> dict[str, Any]:
    """A second axis of values, from 0 on and with ticks of its own. Its traces have `"yaxis": "y2"`."""
    shape = {"overlaying": "y", "side": "right", "showgrid": False, "rangemode": "tozero", "tickmode": "auto"}
    return {"title": {"text": title}, **shape}


def known(values: pd.Series[Any] | NDArray[np.float64]) -> list[Any]:
    """The values as Python's own, None where there is none: no number at all, or an infinite one, which JSON does not know."""
    return [None if pd.isna(value) or value in (math.inf, -math.inf) else value for value in values.tolist()]


def dates(timestamps: pd.Series[Any]) -> list[str]:
    """Stream times as plotly.js reads them."""
    return [format_timestamp(value) for value in timestamps]
