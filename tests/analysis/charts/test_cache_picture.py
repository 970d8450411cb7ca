"""Tests for the triangle of cache splits as SVG."""

from __future__ import annotations

from xml.etree import ElementTree

from modyn.analysis.charts.cache_picture import splits_svg
from modyn.cache.plan.performance_model import SPLITS, Split, TrainingNodes, Workload, predict
from tests.support.cache_profiles import PROFILE

SVG = "{http://www.w3.org/2000/svg}"
CACHE = PROFILE.cache_store("memory", 5 * 10**9)


def test_every_split_is_a_dot_and_the_best_and_that_of_today_are_named() -> None:
    predictions = predict(PROFILE.workload, CACHE, 4)
    root = ElementTree.fromstring(splits_svg("photos <b>", predictions, {"today": Split(58, 42, 0)}))
    paths = list(root.iter(f"{SVG}path"))
    assert sum(path.attrib["d"].count("M") for path in paths) == len(SPLITS)
    assert 2 < len(paths) <= 32
    texts = [text.text or "" for text in root.iter(f"{SVG}text")]
    assert texts[0] == "photos <b>"
    assert {"100 % encoded", "100 % decoded", "100 % augmented"} <= set(texts)
    best, today = predictions.of(predictions.best), predictions.of(Split(58, 42, 0))
    assert f"best: {predictions.best}, {best:,.0f} samples/s" in texts
    assert f"today: 58-42-0, {today:,.0f} samples/s" in texts


def test_splits_that_are_all_alike_have_one_colour() -> None:
    limited = Workload(TrainingNodes(1000, accelerator_samples_per_s=50), PROFILE.workload.dataset, 5e8)
    root = ElementTree.fromstring(splits_svg("alike", predict(limited, CACHE)))
    assert len(list(root.iter(f"{SVG}path"))) == 1
