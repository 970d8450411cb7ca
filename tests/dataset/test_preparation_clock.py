"""The time of preparing samples is measured in the preparing process and returned with the batches."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.cache.tiers.tier import TierPlace
from modyn.dataset.cached.cache_source import CacheSource
from modyn.dataset.config import DataConfig
from modyn.dataset.loader import BatchLoader
from modyn.dataset.preparation_clock import NO_TIMES, PreparationTimes, ReadClock
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from tests.support.fake_dataset import FakeTriggerSet

pytestmark = pytest.mark.usefixtures("preloaded_fakes")

PARSER = (
    "def bytes_parser_function(data):\n    sum(range(20_000))\n    return torch.frombuffer(bytearray(data), dtype=torch.int64)"
)
LAYOUT = {"record_layout": {"dtype": "<i8"}}
TIMES = st.builds(PreparationTimes, *[st.integers(0, 9)] * 7)


@given(st.lists(TIMES))
def test_times_add_up(times: list[PreparationTimes]) -> None:
    assert reduce(PreparationTimes.plus, times, NO_TIMES) == tuple(map(sum, zip(NO_TIMES, *times, strict=True)))


def test_reading_is_measured_from_its_beginning_on() -> None:
    seconds = iter([3.0, 5.5])
    assert ReadClock(lambda: next(seconds)).times(4, 100) == PreparationTimes(2.5, 4, 100)


def loaded(samples: FakeTriggerSet, workers: int, **data: Any) -> PreparationTimes:
    """Return the times of one epoch."""
    config = DataConfig(dataset_id="fake", **data)
    dataset = TriggerSetDataset(samples.info, config, samples, LoadOptions(batch_size=16, drop_last=False))
    with BatchLoader(dataset, workers) as loader:
        assert sum(map(len, loader)) == 50
        return loader.times


@pytest.mark.parametrize("workers", [1, 2], ids=["thread", "processes"])
@pytest.mark.parametrize("short_cut", [True, False])
def test_workers_count_what_they_read_decode_and_augment(short_cut: bool, workers: int) -> None:
    times = loaded(FakeTriggerSet(np.arange(50), 20, short_cut=short_cut), workers, bytes_parser_function=PARSER)
    assert (times.num_decoded, times.num_augmented) == (50, 50)
    assert times.decode_s > times.augment_s > 0
    assert (times.num_read, times.read_bytes) == ((50, 400) if short_cut else (0, 0))
    assert (times.read_s > 0) == short_cut


def test_a_layout_decodes_whole_batches_and_augments_nothing() -> None:
    times = loaded(FakeTriggerSet(np.arange(50), 20, short_cut=True), 1, **LAYOUT)
    assert (times.num_decoded, times.num_augmented, times.augment_s) == (50, 0, 0)


@pytest.mark.parametrize("tier", ["decoded", "encoded"])
def test_what_a_cache_serves_is_not_counted(tier: Any, tmp_path: Path) -> None:
    cache = CacheSource("memory", str(tmp_path), {tier: TierPlace(tier, b"twelve bytes", 1 << 22)})
    samples = FakeTriggerSet(np.arange(50), 20, short_cut=True, cache=cache)
    first, again = (loaded(samples, 1, bytes_parser_function=PARSER) for _ in range(2))
    assert (first.num_read, first.num_decoded, first.num_augmented) == (50, 50, 50)
    assert (again.num_read, again.read_bytes) == (0, 0)
    assert again.num_decoded == (0 if tier == "decoded" else 50)
    assert again.num_augmented == 50
