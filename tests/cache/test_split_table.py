"""The splits that a user compares."""

from __future__ import annotations

import pytest

from modyn.cache.performance_model import Split, predict
from modyn.cache.split_table import check_cache_size, compare_splits
from modyn.errors import InvalidArgumentError
from tests.support.cache_profiles import PROFILE


def test_the_best_each_pure_one_that_of_today_and_none() -> None:
    predictions = predict(PROFILE.workload, PROFILE.cache_store("memory", 2 * 10**9), 1)
    rows = compare_splits(predictions, Split(58, 42, 0))
    assert [(row.name, row.split) for row in rows] == [
        ("best", str(predictions.best)), ("encoded", "100-0-0"), ("decoded", "0-100-0"), ("augmented", "0-0-100"), ("today", "58-42-0"),
        ("no cache", ""),
    ]  # fmt: skip
    assert rows[0].regret == 0
    assert all(row.samples_per_s == pytest.approx((1 - row.regret) * rows[0].samples_per_s) for row in rows)
    assert rows[-1].samples_per_s == 250
    assert [row.name for row in compare_splits(predictions)] == ["best", "encoded", "decoded", "augmented", "no cache"]


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [
        (9 * 2**30, "larger than the memory of this machine, 8,589,934,592 bytes"),
        (99_999, "holds no sample: one has 100,000 bytes"),
    ],
)
def test_a_cache_that_cannot_be_made_or_holds_nothing_is_refused(num_bytes: int, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        check_cache_size(num_bytes, PROFILE.memory_bytes, PROFILE.encoded_bytes)
    check_cache_size(8 * 2**30, PROFILE.memory_bytes, PROFILE.encoded_bytes)
