"""Metrics of a prediction server that Prometheus scrapes."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY, Histogram

from modyn.serving.prometheus import QuickHistogram

BUCKETS = (0.5, 1.0, 2.0)


@given(st.lists(st.sampled_from((0.0, 0.25, 0.5, 0.75, 1.0, 2.0, 2.5, 1e9)), max_size=20))
def test_a_quick_histogram_reads_as_one_of_the_library(values: list[float]) -> None:
    name = f"quick_{time.monotonic_ns()}"
    quick = QuickHistogram(name, "Seconds", ["model"], buckets=BUCKETS)
    usual = Histogram(name, "Seconds", ["model"], buckets=BUCKETS, registry=None)
    for value in values:
        quick.labels("m").observe(value)
        usual.labels("m").observe(value)
    (found,), (wanted,) = quick.collect(), usual.collect()
    samples = [sample for sample in wanted.samples if not sample.name.endswith("_created")]
    assert sorted(found.samples, key=str) == sorted(samples, key=str)
    REGISTRY.unregister(quick)


def test_labels_that_are_removed_are_not_scraped() -> None:
    quick = QuickHistogram("quick_removed", "Seconds", ["version"], buckets=BUCKETS)
    kept, removed = quick.labels("1"), quick.labels("2")
    assert quick.labels("1") is kept
    quick.remove("2")
    removed.observe(1.0)
    assert {sample.labels["version"] for metric in quick.collect() for sample in metric.samples} == {"1"}
    with pytest.raises(KeyError):
        quick.remove("2")
    REGISTRY.unregister(quick)
