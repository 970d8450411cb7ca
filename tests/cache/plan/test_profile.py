"""Measuring within a time budget, and the file of measurements."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn.cache.plan.measuring import (
    Budget,
    MeasuredPart,
    StoreRates,
    measure_processes,
    measure_rate,
    measure_together,
    measure_writing,
    read_batches,
)
from modyn.cache.plan.performance_model import DatasetSizes, Split, predict
from modyn.cache.plan.profile import PROFILE_VERSION, profile_of, profile_path, read_profile, section_digest, write_profile
from modyn.cache.plan.split_plan import plan_cache
from modyn.cache.tiers.memory_tier import MemoryTier
from modyn.cache.tiers.redis_tier import RedisTier
from modyn.cache.tiers.tier import CacheTier, TierPlace
from modyn.errors import CorruptStateError, InvalidArgumentError, NotFoundError, UnavailableError
from modyn.json_codec import from_json, to_json
from modyn.records import BoolArray, Int64Array
from tests.support.cache_profiles import PROFILE


class HandClock:
    """A clock that shows the time to which it was set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: Sequence[float], amount: float = 10) -> Iterator[float]:
        """Pieces of work that take so long."""
        for piece in seconds:
            self.now += piece
            yield amount


def test_each_part_gets_its_share_of_what_is_left() -> None:
    clock, begun = HandClock(), list[MeasuredPart]()
    budget = Budget(60, {"a": 1, "b": 2, "c": 3}, clock, begun.append)
    assert budget.begin("a") == 10
    clock.now += 10
    assert budget.begin("b") == 20
    clock.now += 45
    assert budget.begin("c") == 5, "the one before took longer"
    assert begun == [("a", 10), ("b", 20), ("c", 5)]
    assert budget.seconds_used == 55


def test_a_part_without_time_left_gets_none() -> None:
    clock = HandClock()
    budget = Budget(1, {"a": 1, "b": 1}, clock)
    clock.now += 5
    assert budget.begin("a") == budget.begin("b") == 0


def test_the_first_piece_warms_up_and_no_piece_begins_that_would_end_too_late() -> None:
    clock = HandClock()
    assert measure_rate(clock.work([4] + [1] * 100), seconds=10, clock=clock) == 10
    assert clock.now == 110


def test_one_piece_counts_at_least_however_little_time_there_is() -> None:
    clock = HandClock()
    assert measure_rate(clock.work([5, 2, 2]), seconds=0, clock=clock) == 5
    assert clock.now == 107


def test_as_many_pieces_as_asked_count() -> None:
    clock = HandClock()
    assert measure_rate(clock.work([5, 2, 1, 1, 1]), seconds=0, clock=clock, least=2) == pytest.approx(20 / 3)
    assert measure_rate(clock.work([5, 2]), seconds=0, clock=clock, least=9) == 5


def test_slow_processes_take_little_more_than_their_time() -> None:
    """Two processes start in 5 s and then need 3 s per batch each."""
    clock = HandClock()
    turns = clock.work([8, 0] + [3, 0] * 50)
    assert measure_processes(turns, float, 2, seconds=1, clock=clock) == pytest.approx(20 / 3)
    assert clock.now <= 100 + 8 + 3 + 3


def test_fast_processes_are_measured_with_some_batches_though_starting_has_taken_the_time() -> None:
    """Batches that were made ahead arrive immediately and do not count."""
    clock = HandClock()
    assert measure_processes(clock.work([8, 0, 0, 0] + [0.01] * 100), float, 2, seconds=1, clock=clock) == pytest.approx(1000)
    assert clock.now == pytest.approx(108.09)


def test_a_single_piece_gives_a_rate_and_without_pieces_the_rate_is_zero() -> None:
    clock = HandClock()
    assert measure_rate(clock.work([5]), seconds=60, clock=clock) == 2
    assert measure_rate(iter(()), seconds=60, clock=clock) == 0


@given(st.lists(st.floats(0.001, 5), min_size=2, max_size=50), st.floats(0, 20))
def test_a_rate_takes_its_seconds_and_at_most_two_pieces_more(pieces: list[float], seconds: float) -> None:
    clock = HandClock()
    rate = measure_rate(clock.work(pieces), seconds, clock)
    assert clock.now - 100 <= seconds + 2 * max(pieces) + 1e-9
    assert 10 / max(pieces) - 1e-6 <= rate <= 10 / min(pieces) + 1e-6


def test_workers_add_up() -> None:
    clocks = itertools.count()
    one = measure_together([iter([1.0] * 10)], 4, lambda: next(clocks))
    assert one == 1
    assert measure_together([iter([5.0, 5.0]), iter([5.0, 5.0])], 60) > 0


class DictStore:
    """A store that keeps the first `room` values."""

    def __init__(self, room: int) -> None:
        self._room = room
        self.held: dict[int, object] = {}

    def get(self, keys: Int64Array) -> list[object]:
        return list(map(self.held.get, keys.tolist()))

    def put(self, keys: Int64Array, values: Sequence[object]) -> BoolArray:
        for key, value in zip(keys.tolist(), values, strict=True):
            if key in self.held or len(self.held) < self._room:
                self.held[key] = value
        return np.array([key in self.held for key in keys.tolist()], np.bool_)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 40))
def test_a_store_keeps_at_least_half_of_the_values_or_is_refused(num: int, batch_size: int, room: int) -> None:
    store, values = DictStore(room), [f"value {i}" for i in range(num)]
    if 2 * min(room, num) < num:
        with pytest.raises(UnavailableError, match=f"of {num} values {min(room, num)} were kept"):
            measure_writing(store, values, 10, batch_size, 0)
        return
    assert measure_writing(store, values, 10, batch_size, 0) >= 0
    assert len(store.held) == min(room, num), "each was written once, without any time"


def test_a_store_is_read_in_batches_again_and_again() -> None:
    store = DictStore(10)
    measure_writing(store, list(range(10)), 10, 4, 0)
    reads = read_batches(store, 10, 4)
    assert list(itertools.islice(reads, 7)) == [4, 3, 3, 4, 3, 3, 4]
    del store.held[0]
    assert sum(itertools.islice(reads, 6)) == 18, "what is lost does not count"
    store.held.clear()
    with pytest.raises(UnavailableError, match="of 3 values that were just stored none was found"):
        next(reads)


def test_a_profile_comes_back_from_its_file(tmp_path: Path) -> None:
    path = profile_path(tmp_path, PROFILE.dataset, PROFILE.data_digest)
    write_profile(path, PROFILE)
    assert path == tmp_path / "cache" / "profiles" / "photos-0123456789abcdef.json"
    assert read_profile(path) == PROFILE
    write_profile(path, changed := replace(PROFILE, num_samples=7))
    assert read_profile(path) == changed
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_profile_that_is_not_there_says_which_command_measures(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"there is no .*none.json: run `modyn cache profile PIPELINE.yaml` first"):
        read_profile(tmp_path / "none.json")


def test_a_profile_is_of_one_section_and_one_registration(tmp_path: Path) -> None:
    section = {"dataset_id": PROFILE.dataset, "parser": "one"}
    assert profile_of(tmp_path, section, PROFILE.dataset_identity) is None
    path = profile_path(tmp_path, PROFILE.dataset, section_digest(section))
    write_profile(path, PROFILE)
    assert profile_of(tmp_path, section, PROFILE.dataset_identity) == PROFILE
    assert profile_of(tmp_path, section, "registered again") is None
    assert profile_of(tmp_path, section | {"parser": "another"}, PROFILE.dataset_identity) is None
    path.write_text("{}")
    with pytest.raises(CorruptStateError):
        profile_of(tmp_path, section, PROFILE.dataset_identity)


def _with_version(text: str) -> str:
    content = from_json(text)["content"] | {"version": PROFILE_VERSION + 1}
    return to_json({"digest": section_digest(content), "content": content})


def _without_a_field(text: str) -> str:
    content = from_json(text)["content"]
    del content["profile"]["encoded_bytes"]
    return to_json({"digest": section_digest(content), "content": content})


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda text: text[:100], ""),
        (lambda text: text.replace("58.0", "59.0"), "does not match its checksum"),
        (lambda text: "", ""),
        (lambda text: "[]", ""),
        (lambda text: json.dumps({"digest": 1}), "content"),
        (_with_version, f"version {PROFILE_VERSION + 1}, not {PROFILE_VERSION}"),
        (_without_a_field, "encoded_bytes"),
    ],
    ids=["cut", "changed", "empty", "list", "other JSON", "other version", "field missing"],
)
def test_a_damaged_or_old_profile_is_refused(tmp_path: Path, damage: Callable[[str], str], found: str) -> None:
    path = tmp_path / "profile.json"
    write_profile(path, PROFILE)
    path.write_text(damage(path.read_text()))
    with pytest.raises(CorruptStateError, match=f"{path} cannot be used.*{found}.*measure it again by `modyn cache profile"):
        read_profile(path)


def test_a_profile_is_the_workload_of_the_model() -> None:
    workload, store = PROFILE.workload, PROFILE.cache_store("memory", 10**9)
    assert (workload.dataset.decoded_bytes, workload.dataset.augmented_bytes) == pytest.approx((150_000, 600_000))
    assert workload.nodes.decode_and_augment_samples_per_s == 500
    assert (store.size_bytes, store.bytes_per_s) == (10**9, 4e9)
    predictions = predict(workload, store)
    assert predictions.without_cache_samples_per_s == 250, "storage limits: 25 MB/s of 100 KB each"
    assert predictions.best_samples_per_s > 250


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_store_takes_for_a_sample_what_its_tier_does(encoded: int, decoded: int, augmented: int) -> None:
    measured = replace(PROFILE, stores={"memory": StoreRates(1, 1), "redis": StoreRates(1, 1)})
    place = TierPlace("decoded", b"twelve bytes", 0)
    sizes = DatasetSizes(10, encoded, decoded / encoded, augmented / encoded)
    tiers: dict[str, CacheTier] = {"memory": MemoryTier(place, Path("none")), "redis": RedisTier("redis://none", place)}
    for name, tier in tiers.items():
        taken = measured.cache_store(name, 10**9).taken(sizes)
        found = (taken.encoded_bytes, taken.decoded_bytes, taken.augmented_bytes)
        assert found == pytest.approx([tier.charge(size) for size in (encoded, decoded, augmented)])


def test_a_store_that_was_not_measured_and_samples_without_size_are_refused() -> None:
    with pytest.raises(NotFoundError, match="no store 'redis' was measured; there are memory"):
        PROFILE.cache_store("redis", 10**9)
    with pytest.raises(InvalidArgumentError, match="have 0 bytes on average: there is nothing to cache"):
        _ = replace(PROFILE, encoded_bytes=0.0).workload


def test_profiles_are_in_their_folder_for_any_name_of_a_dataset(tmp_path: Path) -> None:
    path = profile_path(tmp_path, "../../etc/passwd", "ab" * 32)
    assert path.resolve().parent == tmp_path / "cache" / "profiles"


def test_what_no_tier_can_keep_gets_no_part_of_a_cache() -> None:
    """This holds for any gain: here decoding is the bottleneck, and decoded samples have a hundredth of the size."""
    slow = replace(PROFILE, decode_and_augment_samples_per_s=50.0, decoded_bytes=1000.0)
    unlike = replace(slow, decoded_bytes=None, augmented_bytes=None, storage_bytes_per_s=1e6)
    split = plan_cache(slow.workload, {"memory": slow.cache_store("memory", 10**9)}).split
    assert split is not None
    assert split.decoded > 0
    plan = plan_cache(unlike.workload, {"memory": unlike.cache_store("memory", 10**9)})
    assert plan.split == Split(100, 0, 0)
    predictions = predict(unlike.workload, unlike.cache_store("memory", 10**9))
    assert predictions.of(Split(0, 100, 0)) == predictions.of(Split(0, 0, 100)) == pytest.approx(10), "that of storage"


def test_store_rates_are_kept_by_name() -> None:
    assert PROFILE.stores["memory"] == StoreRates(2e9, 4e9)
