"""Tables and a chart of serving over time: version, time, number of requests and latency."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from modyn.analysis.charts.figure import Figure
from modyn.analysis.charts.serving import SERVING_COLUMNS, aligned, periods_of_use, serving_figure, serving_rows, serving_table
from modyn.analysis.results import triggers_table
from modyn.latencies import histogram
from modyn.records import VersionRole
from modyn.supervisor.client import ServedInterval, TriggerRecord, TriggerState

SERVING, CANARY, PINNED = VersionRole.SERVING, VersionRole.CANARY, VersionRole.PINNED
NO_TRIGGERS = triggers_table([])


def served(start: int, model_id: int, seconds: list[float], role: VersionRole = SERVING, **more: Any) -> ServedInterval:
    """A minute in which a version was reported from its first to its last second."""
    whole = ServedInterval(start, 60, model_id, role, start, start + 59.5, histogram(np.array(seconds)))
    return dataclasses.replace(whole, **more)


def test_a_row_for_each_interval_and_version() -> None:
    table = serving_table([served(0, 1, [0.001, 0.002, 0.5]), served(0, 2, [], VersionRole.SHADOW)])
    assert table["num_requests"].tolist() == [3, 0]
    assert table["role"].tolist() == ["serving", "shadow"]
    assert table["p50_s"].tolist() == [pytest.approx(0.002, rel=1 / 16), pytest.approx(np.nan, nan_ok=True)]
    assert table["p99_s"].iloc[0] == pytest.approx(0.002, rel=1 / 16)
    assert list(serving_table([]).dtypes) == list(table.dtypes)


def test_a_version_is_in_use_until_another_one_is_or_no_server() -> None:
    intervals = [
        served(0, 1, [0.1]),
        served(60, 1, [0.1, 0.1], last_at=80.0),
        served(60, 2, [0.2], first_at=81.0),
        served(60, 2, [0.2], PINNED, first_at=70.0, last_at=70.0),
        served(120, 2, [0.2]),
        served(240, 1, []),  # a rollback
        served(360, 1, [0.1]),  # a minute without a server before it
        served(600, 2, [0.2], PINNED),
        ServedInterval(3600, 3600, 1, SERVING, 3600.0, 7199.5, {}),
        ServedInterval(7200, 3600, 1, SERVING, 7200.5, 7300.0, {}),
    ]
    found = [
        (period.model_id, period.role, period.first_at, period.last_at, sum(period.latencies.values()))
        for period in periods_of_use(intervals)
    ]
    assert found == [
        (1, SERVING, 0, 80.0, 3),
        (2, PINNED, 70.0, 659.5, 2),
        (2, SERVING, 81.0, 179.5, 2),
        (1, SERVING, 240, 299.5, 0),
        (1, SERVING, 360, 419.5, 1),
        (1, SERVING, 3600.0, 7300.0, 0),
    ]
    assert periods_of_use(intervals[::-1]) == periods_of_use(intervals)


def test_versions_are_named_with_their_triggers() -> None:
    made = TriggerRecord(5, 0, 0, 9, 9, TriggerState.TRAINED, started_at=1.0, model_id=2)
    rows = serving_rows([served(0, 1, [0.1]), served(60, 2, [0.004] * 1200, CANARY)], triggers_table([made]))
    assert [len(row) for row in rows] == [len(SERVING_COLUMNS)] * 2
    assert rows[0][:6] == [1, "–", "serving", "1970-01-01 00:00:00", "1970-01-01 00:00:59", "1"]
    assert rows[1][:6] == [2, 5, "canary", "1970-01-01 00:01:00", "1970-01-01 00:01:59", "1,200"]
    assert float(rows[1][7]) == pytest.approx(4, rel=1 / 16)
    assert serving_rows([served(0, 1, [])], NO_TRIGGERS)[0][5:] == ["0", "–", "–"]


def test_the_chart_has_latencies_of_all_versions_and_gaps_where_none_was_reported() -> None:
    assert serving_figure([]) is None
    figure = serving_figure(
        [
            served(0, 1, [0.001] * 60),
            served(0, 2, [0.01] * 60, CANARY),
            served(60, 1, []),
            served(180, 2, [0.01], first_at=190.0, last_at=191.0),
        ]
    )
    assert figure is not None
    p50, p99, requests = (trace["y"] for trace in figure.data)
    assert [text[-5:] for text in figure.data[0]["x"]] == [
        *("00:00", "01:00", "01:00", "02:00", "02:00"),
        *("03:10", "03:12", "03:12"),
    ]
    assert p50[0] == pytest.approx(1, rel=1 / 16)
    assert p99[0] == pytest.approx(10, rel=1 / 16)
    assert [value is None for value in p50] == [False, False, True, True, True, False, False, True], "to the end of the minute"
    assert requests == [pytest.approx(120 / 60.5)] * 2 + [0.0, 0.0, None, 0.5, 0.5, None]
    bands = [(shape["x0"][-8:], shape["x1"][-8:], shape["label"]["text"]) for shape in figure.layout["shapes"]]
    assert bands == [("00:00:00", "00:02:00", "1"), ("00:03:10", "00:03:12", "")]  # too narrow for a name
    go.Figure(figure.data, figure.layout)
    figure.html()


def chart(*times: str) -> Figure:
    return Figure([{"x": list(times)}], {"xaxis": {"title": "t"}, "height": 1})


def test_charts_get_one_range_where_their_times_overlap() -> None:
    one, two, far = chart("2026-01-01", "2026-01-03"), chart("2026-01-02", "2026-01-04"), chart("1999-01-01")
    ranges = [figure.layout["xaxis"].get("range") for figure in aligned([one, two])]
    assert ranges == [["2026-01-01", "2026-01-04"]] * 2
    assert one.layout["xaxis"] == {"title": "t"}
    assert aligned([one, two, far]) == [one, two, far]


def test_times_of_the_table_are_datetimes() -> None:
    from modyn.analysis.times import with_times

    table = with_times(serving_table([served(60, 1, [0.1])]))
    assert table["start"].iloc[0] == pd.Timestamp("1970-01-01 00:01:00", tz="UTC")
    assert table["last_at"].iloc[0] == pd.Timestamp("1970-01-01 00:01:59.5", tz="UTC")
