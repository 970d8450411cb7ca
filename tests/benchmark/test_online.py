"""The programs that measure online learning, on few samples."""

from __future__ import annotations

import re

import numpy as np
import pytest

from benchmark.online.clicks import CATEGORIES, NUMBERS, ClickStream
from modyn.preprocessing import Preprocessing
from tests.support.measuring import measured


@pytest.mark.slow
def test_statistics_are_measured() -> None:
    small = ["--rows", "600", "--batch-sizes", "100", "300", "--rounds", "1"]
    lines = measured("benchmark.online", "statistics", *small).splitlines()
    assert [line.split(" | ")[0] for line in lines if line.startswith("|")][2:] == ["| 100", "| 300"]
    assert re.fullmatch(r"statistics: \d+\.\d\d \(target 1\.5\)", lines[-1])


def test_both_sides_scale_numbers_alike() -> None:
    statistics = pytest.importorskip("benchmark.online.statistics")
    ours, theirs = Preprocessing(statistics.SECTION), statistics.SklearnNumbers()
    for batch in ClickStream(700, seed=1).batches(300):
        features = ours.update_and_transform(batch)
        np.testing.assert_allclose(features.dense, theirs(statistics.number_matrix(batch)), rtol=1e-4, atol=1e-5)
        assert features.dense.shape[1] == len(NUMBERS)
        assert len(features.indices) == len(features) * len(CATEGORIES)


def test_a_stream_of_clicks_is_its_seed_and_grows_vocabularies() -> None:
    one, other = list(ClickStream(500).batches(200)), list(ClickStream(500).batches(200))
    assert one == other
    assert [len(batch["c1"]) for batch in one] == [200, 200, 100]
    assert one[0]["i4"].null_count > 0
    assert len(one[0]["c26"].unique()) > 50
