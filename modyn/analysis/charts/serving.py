"""Chart of a run's serving over time: latencies, requests, and the versions that answered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pandas as pd

from modyn.analysis.charts.bins import MAX_BINS
from modyn.analysis.charts.figure import ACTIVE, NEUTRAL, TRAINED, Figure, right_axis
from modyn.analysis.results import triggers_of_models
from modyn.config.durations import format_timestamp
from modyn.latencies import merged, quantile
from modyn.records import VersionRole
from modyn.supervisor.client import ServedInterval

SERVING_NOTE: Final = (
    "Predictions of `modyn serve` by the clock of the supervisor: the latencies of the fastest 50 % and 99 % of requests in "
    "milliseconds, over all servers and versions, and requests per second. The time in which a version served is shaded; in "
    "white periods no version served."
)
SERVING_COLUMNS: Final = ("version", "trigger", "role", "from (UTC)", "until", "requests", "p50 ms", "p99 ms")
_AWAY_S: Final = 60.0
"""Seconds without a report after which a version counts as out of use. Servers report once a second."""
_LABELLED: Final = 0.03
"""A period of use shows the name of its version if it spans at least this share of the chart's width."""
_TICKS_MS: Final = [factor * 10.0**power for power in range(-3, 6) for factor in (1, 2, 5)]
"""Values of the ticks, in milliseconds. These ticks replace the default ticks of a logarithmic axis, which show 20 as 2."""
_MARGIN: Final = {"l": 60, "r": 60, "t": 20, "b": 40}
_TABLE: Final = {
    "start": "int64",
    "width": "int64",
    "model_id": "int64",
    "role": "object",
    "first_at": "float64",
    "last_at": "float64",
    "num_requests": "int64",
    "p50_s": "float64",
    "p99_s": "float64",
}


def serving_table(served: Sequence[ServedInterval]) -> pd.DataFrame:
    """Return a row for each interval, version and role: the fields of `ServedInterval`, `num_requests`, p50_s and p99_s (NaN: there were no
    requests)."""
    rows = [
        (s.start, s.width, s.model_id, str(s.role), s.first_at, s.last_at, s.num_requests, *_quantiles(s.latencies))
        for s in served
    ]
    return pd.DataFrame(rows, columns=list(_TABLE)).astype(_TABLE)


@dataclass(frozen=True, slots=True)
class PeriodOfUse:
    """A period in which a version was in use without a break. For a pinned version, the whole time in which requests named the version."""

    model_id: int
    role: VersionRole
    first_at: float
    """Seconds since 1970."""
    last_at: float
    latencies: Mapping[int, int]


def periods_of_use(served: Sequence[ServedInterval]) -> list[PeriodOfUse]:
    """Return the periods in which each version was in use, ordered by the first report. Breaks within one interval are not detected. Old intervals
    may be hours long.
    """
    found = dict[tuple[int, VersionRole], list[PeriodOfUse]]()
    for interval in sorted(served, key=lambda interval: interval.first_at):
        of_version = found.setdefault((interval.model_id, interval.role), [])
        new = PeriodOfUse(interval.model_id, interval.role, interval.first_at, interval.last_at, interval.latencies)
        if of_version and (interval.role is VersionRole.PINNED or new.first_at - of_version[-1].last_at <= _AWAY_S):
            last = of_version.pop()
            last_at, latencies = max(last.last_at, new.last_at), merged([last.latencies, new.latencies])
            new = replace(last, last_at=last_at, latencies=latencies)
        of_version.append(new)
    return sorted((period for of_version in found.values() for period in of_version), key=lambda period: period.first_at)


def serving_rows(served: Sequence[ServedInterval], triggers: pd.DataFrame) -> list[list[Any]]:
    """Return the periods and requests of each version, as cells of SERVING_COLUMNS. Args: triggers: the table of `read_results`."""
    made_by = triggers_of_models(triggers)
    return [
        [
            period.model_id,
            made_by.get(period.model_id, "–"),
            period.role,
            format_timestamp(int(period.first_at)),
            format_timestamp(int(period.last_at)),
            f"{sum(period.latencies.values()):,}",
            *("–" if value is None else f"{value:.3g}" for value in _milliseconds(period.latencies)),
        ]
        for period in periods_of_use(served)
    ]


def serving_figure(served: Sequence[ServedInterval]) -> Figure | None:
    """Draw latencies and requests over time, and the newest MAX_BINS periods in which a version served. Return None if there are no reports."""
    if not served:
        return None
    of_time = dict[tuple[int, int], list[ServedInterval]]()
    for interval in served:
        of_time.setdefault((interval.start, interval.width), []).append(interval)
    spans = [(min(part.first_at for part in parts), max(part.last_at for part in parts), parts) for parts in of_time.values()]
    spans.sort(key=lambda span: span[:2])
    x, lines = list[str](), list[tuple[float | None, float | None, float | None]]()
    for (first_at, last_at, parts), next_at in zip(spans, [*(span[0] for span in spans[1:]), math.inf], strict=True):
        latencies = merged(part.latencies for part in parts)
        is_last = next_at - last_at > _AWAY_S
        # The line of an interval extends to the next interval. Before a break, the line ends with the last request, and a gap follows.
        x += [format_timestamp(int(at)) for at in (first_at, *([last_at + 1] * 2 if is_last else [next_at]))]
        line = (*_milliseconds(latencies), sum(latencies.values()) / (last_at - first_at + 1))
        lines += [line, line, *([(None, None, None)] if is_last else [])]
    drawn = (("p50", "ms", ACTIVE, "y"), ("p99", "ms", TRAINED, "y"), ("requests", "requests/s", NEUTRAL, "y2"))
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "line": {"color": colour, "shape": "hv", "width": 1 if axis == "y2" else 2},
            "x": x,
            "y": list(values),
            "yaxis": axis,
            "hovertemplate": "%{x}<br>%{y:.3g} " + unit + "<extra>" + name + "</extra>",
        }
        for (name, unit, colour, axis), values in zip(drawn, zip(*lines, strict=True), strict=True)
    ]
    axes = {
        "xaxis": {"title": {"text": "time (UTC)"}},
        "yaxis": {"title": {"text": "milliseconds"}, "type": "log", "tickvals": _TICKS_MS},
        "yaxis2": right_axis("requests/s"),
    }
    return Figure(traces, {"height": 320, "margin": _MARGIN, "shapes": _bands(served), **axes})


def aligned(figures: Sequence[Figure]) -> list[Figure]:
    """Give all charts the same time range if their times overlap. Otherwise, for example if a run replays historical data, each chart keeps its
    range.
    """
    times = [[when for trace in figure.data for when in trace["x"]] for figure in figures]
    if max(map(min, times)) > min(map(max, times)):
        return list(figures)
    whole = [min(map(min, times)), max(map(max, times))]
    return [replace(f, layout=f.layout | {"margin": _MARGIN, "xaxis": f.layout["xaxis"] | {"range": whole}}) for f in figures]


def _bands(served: Sequence[ServedInterval]) -> list[dict[str, Any]]:
    shown = [period for period in periods_of_use(served) if period.role is VersionRole.SERVING][-MAX_BINS:]
    whole = max((period.last_at for period in shown), default=0.0) - min((period.first_at for period in shown), default=0.0)
    return [
        {
            "type": "rect",
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "x0": format_timestamp(int(period.first_at)),
            "x1": format_timestamp(int(period.last_at) + 1),
            "fillcolor": (ACTIVE, TRAINED)[number % 2],
            "opacity": 0.12,
            "line": {"width": 0},
            "layer": "below",
            "label": {
                "text": str(period.model_id) if period.last_at - period.first_at >= _LABELLED * whole else "",
                "textposition": "top left",
            },
        }
        for number, period in enumerate(shown)
    ]


def _quantiles(latencies: Mapping[int, int]) -> tuple[float, float]:
    return quantile(latencies, 0.5), quantile(latencies, 0.99)


def _milliseconds(latencies: Mapping[int, int]) -> tuple[float | None, float | None]:
    """Return p50 and p99 in milliseconds; None: no requests."""
    p50_s, p99_s = _quantiles(latencies)
    return (1000 * p50_s, 1000 * p99_s) if latencies else (None, None)
