"""Samples that a cache served to a training, and saved time minus the cost of the cache."""

from __future__ import annotations

from dataclasses import replace

import pytest

from modyn.cache.served_counts import ServedCounts
from tests.support.cache_profiles import PROFILE

NUM_CACHED = {"encoded": 10, "decoded": 70, "augmented": 0}
WORK = {"read": 5, "decoded": 10, "augmented": 20, "evicted": 9}
COUNTS = ServedCounts(20, 10, 70, 0, 5, 10, 20, 9)


def test_samples_that_no_tier_had_came_from_storage() -> None:
    assert ServedCounts.of(100, NUM_CACHED, WORK) == COUNTS
    assert ServedCounts.of(79, NUM_CACHED, {}).storage == 0, "one was left out after it was found"
    assert ServedCounts.of(100, NUM_CACHED, {}) == ServedCounts(20, 10, 70, 0)


def test_what_is_prepared_for_the_cache_only_counts_as_preparation() -> None:
    assert (COUNTS.served, COUNTS.hit_share, COUNTS.decodings, COUNTS.preparations) == (100, 0.8, 40, 0.4)
    nothing = ServedCounts(0, 0, 0, 0)
    assert (nothing.hit_share, nothing.preparations) == (0, 0)


def test_saved_seconds_follow_from_what_was_measured() -> None:
    """The cache avoided reading eighty samples, and decoding seventy of them."""
    read = PROFILE.encoded_bytes / PROFILE.storage_bytes_per_s
    augment = 1 / PROFILE.augment_samples_per_s
    decode = 1 / PROFILE.decode_and_augment_samples_per_s - augment
    saved = ServedCounts(20, 10, 70, 0).seconds_saved(PROFILE)
    assert saved == pytest.approx(80 * read + 70 * decode)
    assert ServedCounts(0, 0, 0, 10).seconds_saved(PROFILE) == pytest.approx(10 * (read + decode + augment))
    assert COUNTS.seconds_saved(PROFILE) == pytest.approx(saved - 5 * read - 10 * decode - 20 * augment)


def test_a_cache_that_served_nothing_has_cost_what_was_prepared_for_it() -> None:
    assert ServedCounts(100, 0, 0, 0, 16, 16, 16).seconds_saved(PROFILE) < 0


def test_no_step_is_taken_to_last_less_than_nothing() -> None:
    """By chance, decoding with augmentation may be measured as faster than decoding alone."""
    odd = replace(PROFILE, augment_samples_per_s=400.0)
    read = PROFILE.encoded_bytes / PROFILE.storage_bytes_per_s
    assert ServedCounts(0, 0, 10, 0).seconds_saved(odd) == pytest.approx(10 * read)
