"""The triangle of splits of a cache."""

from __future__ import annotations

import json

import plotly.graph_objects as go
import pytest

from modyn.analysis.cache_charts import LEAST_RANGE, splits_figure
from modyn.cache.performance_model import SPLITS, CacheStore, DatasetSizes, Split, TrainingNodes, Workload, predict

WORKLOAD = Workload(TrainingNodes(1000, 4000, network_bytes_per_s=1e10), DatasetSizes(1_000_000, 1e5, 5, 5), 5e6)
CACHE = CacheStore(200 * 10**9, 1e10)


def test_every_split_stands_at_its_corner_distances_with_its_throughput() -> None:
    predictions = predict(WORKLOAD, CACHE, 1)
    splits, best, in_use = splits_figure(predictions, {"in use": Split(58, 42, 0)}).data
    drawn = [Split(e, d, a) for e, d, a in zip(splits["b"], splits["c"], splits["a"], strict=True)]
    assert sorted(drawn) == sorted(Split(*row) for row in SPLITS.tolist())
    assert splits["marker"]["color"] == pytest.approx([predictions.of(split) for split in drawn], abs=0.06)
    assert splits["customdata"][drawn.index(Split(100, 0, 0))] == [1000.0, pytest.approx(100 * (1 - 1000 / 1748.4), abs=1e-3)]
    assert best["name"] == "best: 37-63-0, 1,748 samples/s"
    assert (best["a"], best["b"], best["c"]) == ([0], [37], [63])
    assert in_use["name"] == "in use: 58-42-0, 1,504 samples/s"
    assert splits["marker"]["cmin"] == predictions.samples_per_s.min()


def test_ties_are_outlined_and_small_differences_keep_one_colour() -> None:
    limited = Workload(TrainingNodes(1000, accelerator_samples_per_s=50), WORKLOAD.dataset, 5e6)
    splits, ties, best = splits_figure(predict(limited, CACHE)).data
    assert ties["name"] == "5,151 as good as the best"
    assert best["name"] == "best: 0-100-0, 50 samples/s"
    assert (splits["marker"]["cmin"], splits["marker"]["cmax"]) == (LEAST_RANGE * 50, 50)


def test_the_chart_is_what_plotly_draws() -> None:
    figure = splits_figure(predict(WORKLOAD, CACHE), {"in use": Split(58, 42, 0)})
    data, layout, _ = json.loads("[" + figure.html().split("previousElementSibling, ")[1].removesuffix(")</script>") + "]")
    parsed = json.loads(go.Figure(data, layout).to_json())
    parsed["data"][0]["marker"]["colorscale"] = "Viridis"  # plotly.py replaces the name by the colours.
    assert parsed == {"data": data, "layout": layout}
