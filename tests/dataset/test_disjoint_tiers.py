"""Each sample is in at most one tier of kept values. The performance model of the cache relies on this."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.cache.keys import TierName
from modyn.cache.tiers.memory_tier import MemoryTier
from modyn.cache.tiers.tier import TierPlace
from modyn.dataset.cached.cache_source import CacheSource
from modyn.dataset.config import DataConfig
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.records import Int64Array
from tests.support.fake_dataset import FakeTriggerSet

KEYS = np.arange(60)
DATA = DataConfig(
    dataset_id="fake",
    bytes_parser_function="def bytes_parser_function(data):\n    return torch.frombuffer(bytearray(data), dtype=torch.int64)",
)
VALUE_BYTES = 5120
"""Bytes that a small sample occupies in shared memory."""
BOTH_WAYS = pytest.mark.parametrize("short_cut", [False, True], ids=["flight", "local"])


def source(folder: Path, encoded: int, decoded: int) -> CacheSource:
    """Budget for this number of samples."""
    budgets: dict[TierName, int] = {"encoded": encoded * VALUE_BYTES, "decoded": decoded * VALUE_BYTES}
    return CacheSource("memory", str(folder), {name: TierPlace(name, bytes(12), size) for name, size in budgets.items()})


def read(cache: CacheSource, short_cut: bool) -> tuple[int, int]:
    """Read an epoch of all samples. Returns the number of samples from the encoded tier and from the decoded tier."""
    keys = FakeTriggerSet(KEYS, 25, answer_size=4, short_cut=short_cut, cache=cache)
    dataset = TriggerSetDataset(keys.info, DATA, keys, LoadOptions(7, drop_last=False, shuffle=True, seed=1))
    batches = list(dataset.serve())
    assert sorted(key for batch in batches for key in batch.keys.tolist()) == KEYS.tolist()
    return sum(batch.cached.encoded for batch in batches), sum(batch.cached.decoded for batch in batches)


def held(cache: CacheSource, name: TierName) -> Int64Array:
    return KEYS[MemoryTier(cache.places[name], Path(cache.address)).holds(KEYS)]


@BOTH_WAYS
def test_what_one_tier_holds_the_other_does_not(short_cut: bool, tmp_path: Path) -> None:
    """With room for half of the samples in each, all are found in the second epoch."""
    cache = source(tmp_path, 30, 30)
    assert read(cache, short_cut) == (0, 0)
    assert read(cache, short_cut) == (30, 30)


@BOTH_WAYS
@given(
    rooms=st.tuples(st.integers(0, 60), st.integers(0, 60)),
    lost=st.lists(st.tuples(st.sampled_from(["encoded", "decoded"]), st.sets(st.integers(0, 59))), max_size=3),
)
@settings(max_examples=8)
def test_samples_that_move_leave_the_tier_that_they_were_in(
    short_cut: bool,
    rooms: tuple[int, int],
    lost: list[tuple[TierName, set[int]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """This holds even if tiers lose values between epochs and other values replace them."""
    cache = source(tmp_path_factory.mktemp("cache"), *rooms)
    for name, keys in [("decoded", set[int]()), *lost]:
        MemoryTier(cache.places[name], Path(cache.address)).drop(np.array(sorted(keys), np.int64))
        read(cache, short_cut)
        assert not np.intersect1d(held(cache, "encoded"), held(cache, "decoded")).size
    assert len(held(cache, "decoded")) == rooms[1]
    assert len(held(cache, "encoded")) == min(rooms[0], 60 - rooms[1])
