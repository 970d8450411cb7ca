"""Presampling policies and freshness: what each keeps of a window, by brute force where it is exact and by statistics where it is random."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modyn._core import KeySet
from modyn.db.engine import Database
from modyn.errors import ConfigError
from modyn.records import Int64Array, RunId, RunRegistration, SampleBatch
from modyn.selector.selection import build_selection
from modyn.selector.selector import Selector
from modyn.selector.window import NO_KEYS, SelectionContext, StateFiles, window_of_trigger
from modyn.selector.window.strata import MOST_STRATA
from modyn.testing.fake_selector import FakeSelectorClient
from modyn.testing.memory_reader import MemoryReader

RUN = RunId("r")
DAY = 86_400


def batch(
    labels: Sequence[float] | npt.NDArray[Any], timestamps: Sequence[int] | Int64Array | None = None, first: int = 0
) -> SampleBatch:
    """Samples with these labels, whose keys are three times their positions."""
    positions = np.arange(first, first + len(labels))
    return SampleBatch(positions * 3, positions if timestamps is None else np.asarray(timestamps, np.int64), np.asarray(labels))


def sites(dataset: str, identity: str, column: str, keys: Int64Array) -> Int64Array:
    """Strata by a column of which each value has half as many samples as the one before."""
    mixed = (keys // 3 * 2_654_435_761 + 12_345) % 2**32 | 2**12
    found: Int64Array = np.log2(mixed & -mixed).astype(np.int64)
    return found


def chosen(
    samples: SampleBatch, presampling: Mapping[str, Any], seed: int = 0, ends: Sequence[int] = (), **options: Any
) -> list[int]:
    """Positions that a policy without files keeps of all samples. Args: ends: of earlier triggers."""
    section = {"name": "CoresetStrategy", "maximum_keys_in_memory": 10, "presampling_config": presampling, **options}
    window = window_of_trigger(MemoryReader(samples), 0, len(samples), 10)
    context = SelectionContext(seed, len(ends), StateFiles(Path("/nowhere"), 0), lambda: np.array(ends, np.int64))
    found = build_selection(section).select(window, context)
    return [key // 3 for chunk in found.chunks for key in chunk.keys.tolist()]


def run_of(
    section: Mapping[str, Any],
    samples: SampleBatch,
    ends: Sequence[int],
    deleted: Callable[[int], Sequence[int]] = lambda trigger_id: (),
) -> list[list[int]]:
    """Positions that each trigger of a run selects. Args: deleted: positions that are deleted when a trigger selects."""
    client = FakeSelectorClient(
        lambda dataset, identity: KeySet(3 * np.array(sorted(set(deleted(len(client.runs[RUN].sets)))), np.int64)), sites
    )
    client.register_run(RunRegistration(RUN, "d", {"maximum_keys_in_memory": 10, **section}, 5))
    client.inform(RUN, 0, samples)
    for trigger_id, end in enumerate(ends):
        client.trigger(RUN, trigger_id, end)
    return [(found.keys // 3).tolist() for found in client.runs[RUN].sets]


def assert_equally_likely(counts: Sequence[int]) -> None:
    """A chi-squared test with p > 0.0001 in the normal approximation; the numbers are at least as independent as draws without replacement."""
    expected = sum(counts) / len(counts)
    chi_squared = sum((count - expected) ** 2 / expected for count in counts)
    freedom = len(counts) - 1
    assert chi_squared < freedom + 4 * (2 * freedom) ** 0.5 + 8


@pytest.mark.parametrize("labels", [[0, 1, 2], [-5, 10**12, 70_000], [0.5, -0.0, float("nan")], [1.0, 0.0, float("inf")]])
def test_each_label_gets_the_same_share_as_far_as_it_has_samples(labels: list[float]) -> None:
    stream = np.repeat(np.array(labels), [4, 100, 300])
    np.random.default_rng(1).shuffle(stream)
    for ratio, shares in ((1, [1, 1, 2]), (10, [4, 18, 18]), (25, [4, 48, 49]), (60, [4, 100, 138]), (100, [4, 100, 300])):
        found = chosen(batch(stream), {"strategy": "LabelBalanced", "ratio": ratio})
        assert found == sorted(set(found))
        assert sorted(Counter(map(str, stream[found].tolist())).values()) == shares
    limited = chosen(batch(stream), {"strategy": "LabelBalanced", "ratio": 60}, limit=30)
    assert sorted(Counter(map(str, stream[limited].tolist())).values()) == [4, 13, 13]


def test_zero_has_one_sign_and_nan_one_value() -> None:
    stream = np.array([0.0, -0.0] * 10 + [np.nan, -np.nan] * 10)
    found = chosen(batch(stream), {"strategy": "LabelBalanced", "ratio": 25})
    assert Counter(np.isnan(stream[found]).tolist()) == {True: 5, False: 5}


@pytest.mark.slow
def test_samples_of_a_stratum_are_equally_likely_and_those_left_over_go_to_each_label_equally_often() -> None:
    """Labels of 3, 7 and 14 samples, of which 11 are kept: 3 and 4 and 4."""
    labels = np.repeat([7, 8, 9], [3, 7, 14])
    found = [chosen(batch(labels), {"strategy": "LabelBalanced", "ratio": 47}, seed) for seed in range(1500)]
    counts = np.bincount(np.concatenate(found), minlength=24)
    assert counts[:3].tolist() == [1500] * 3
    assert_equally_likely(counts[3:10].tolist())
    assert_equally_likely(counts[10:].tolist())
    extra = Counter(int(labels[chosen(batch(labels), {"strategy": "LabelBalanced", "ratio": 5}, seed)[0]]) for seed in range(900))
    assert_equally_likely([extra[label] for label in (7, 8, 9)])


def test_force_column_balancing_gives_each_the_share_of_the_smallest() -> None:
    labels = np.repeat([0, 1, 2], [6, 30, 60])
    balanced = {"strategy": "LabelBalanced", "force_column_balancing": True}
    for ratio, share in ((10, 3), (12, 3), (50, 6), (100, 6)):
        found = chosen(batch(labels), {**balanced, "ratio": ratio})
        assert Counter(labels[found].tolist()) == dict.fromkeys(range(3), share)
    found = chosen(batch(labels), {**balanced, "ratio": 50, "force_required_target_size": True})
    assert Counter(labels[found].tolist()) == {0: 6, 1: 21, 2: 21}
    with pytest.raises(
        ConfigError, match="force_column_balancing: 2 samples are fewer than the 3 labels of the window.*raise ratio"
    ):
        chosen(batch(labels), {**balanced, "ratio": 3})


def test_too_many_labels_are_refused() -> None:
    labels = np.arange(MOST_STRATA + 1) / 3
    with pytest.raises(ConfigError, match=f"more than {MOST_STRATA} labels.*choose a presampling strategy without them"):
        chosen(batch(labels), {"strategy": "Stratified", "ratio": 50})


def test_each_trigger_gets_the_same_share() -> None:
    """Triggers of 10, 0, 50 and 100 new samples."""
    ends = [10, 10, 60]
    found = chosen(batch(np.zeros(160)), {"strategy": "TriggerBalanced", "ratio": 50}, ends=ends)
    assert Counter(np.searchsorted(ends, found, "right").tolist()) == {0: 10, 2: 35, 3: 35}


def test_triggers_are_told_apart_by_positions_after_any_deletion() -> None:
    section = {"name": "CoresetStrategy", "tail_triggers": 2, "presampling_config": {"strategy": "TriggerBalanced", "ratio": 25}}
    ends = [50, 100, 150, 200]
    found = run_of(section, batch(np.zeros(200)), ends, lambda trigger_id: range(40, 120) if trigger_id == 3 else ())
    assert [len(keys) for keys in found] == [12, 25, 37, 20]
    assert sorted(Counter(np.searchsorted(ends, found[2], "right").tolist()).values()) == [12, 12, 13]
    assert not set(found[3]) & set(range(120))
    assert sorted(Counter(np.searchsorted(ends, found[3], "right").tolist()).values()) == [10, 10]


def test_stratified_keeps_the_shares_to_the_sample_and_no_label_vanishes() -> None:
    labels = np.repeat([0, 1, 2, 3], [2, 48, 250, 700])
    found = chosen(batch(labels), {"strategy": "Stratified", "ratio": 10})
    assert Counter(labels[found].tolist()) == {0: 1, 1: 5, 2: 25, 3: 69}
    found = chosen(batch(labels), {"strategy": "Stratified", "ratio": 50})
    assert Counter(labels[found].tolist()) == {0: 1, 1: 24, 2: 125, 3: 350}
    few = chosen(batch(labels), {"strategy": "Stratified", "ratio": 3, "ratio_max": 1000})
    assert Counter(labels[few].tolist()) == {2: 1, 3: 2}


def test_a_sample_of_one_half_life_is_half_as_likely() -> None:
    """Four days of 1000 samples, then a year without any before them: shares 8 : 4 : 2 : 1, and none for those of before."""
    times = np.concatenate([np.zeros(1000), np.repeat(np.arange(365, 369), 1000)]).astype(np.int64) * DAY
    found = chosen(batch(np.zeros(5000), times), {"strategy": "TimeWeighted", "ratio": 15, "half_life": "1d"})
    assert Counter((times[found] // DAY).tolist()) == {365: 50, 366: 100, 367: 200, 368: 400}
    full = chosen(batch(np.zeros(5000), times), {"strategy": "TimeWeighted", "ratio": 48, "half_life": "1d"})
    assert Counter((times[full] // DAY).tolist()) == {365: 200, 366: 400, 367: 800, 368: 1000}
    beyond = chosen(batch(np.zeros(5000), times), {"strategy": "TimeWeighted", "ratio": 90, "half_life": "1d"})
    assert Counter((times[beyond] // DAY).tolist()) == {0: 500, 365: 1000, 366: 1000, 367: 1000, 368: 1000}


@pytest.mark.parametrize("times", [[-(2**63), 2**63 - 1, 0], [5, 5, 5], [2**63 - 1] * 3, [-(2**63)] * 3])
@pytest.mark.parametrize("half_life", [1, "100y"])
def test_times_at_the_ends_of_their_range_are_ages_too(times: list[int], half_life: int | str) -> None:
    samples = batch(np.zeros(300), np.array(times * 100))
    found = chosen(samples, {"strategy": "TimeWeighted", "ratio": 30, "half_life": half_life})
    assert len(found) == 90
    if len(set(times)) > 1:
        assert set(samples.timestamps[found].tolist()) == {2**63 - 1}


def test_each_sample_is_as_likely_as_its_weight_says_also_where_each_has_an_age_of_its_own() -> None:
    """64 samples, one a second over two half-lives, of which 12 are kept."""
    kept = [chosen(batch(np.zeros(64)), {"strategy": "TimeWeighted", "ratio": 19, "half_life": 32}, seed) for seed in range(1000)]
    counts = np.bincount(np.concatenate(kept), minlength=64)
    weights = 2.0 ** (np.arange(-63, 1) / 32)
    expected = 1000 * 12 * weights / weights.sum()
    assert {len(keys) for keys in kept} == {12}
    assert expected.max() < 1000
    deviations = (counts - expected) / (expected * (1 - expected / 1000)) ** 0.5
    assert (deviations**2).sum() < 64 + 4 * 128**0.5


@given(
    ends=st.lists(st.integers(0, 60), min_size=1, max_size=8).map(sorted),
    ratio=st.integers(1, 100),
    limit=st.sampled_from([-1, 1, 7, 30]),
    tail=st.sampled_from([None, 0, 1, 3]),
    deleted=st.lists(st.integers(0, 59), max_size=20),
)
def test_each_sample_is_drawn_once_before_any_is_drawn_twice(
    ends: list[int], ratio: int, limit: int, tail: int | None, deleted: list[int]
) -> None:
    presampling = {"strategy": "RandomNoReplacement", "ratio": ratio}
    section = {"name": "CoresetStrategy", "tail_triggers": tail, "limit": limit, "presampling_config": presampling}
    found = run_of(section, batch(np.zeros(60)), ends, lambda trigger_id: deleted[: 3 * trigger_id])
    used: set[int] = set()
    for trigger_id, keys in enumerate(found):
        window = window_positions(ends, trigger_id, tail) - set(deleted[: 3 * trigger_id])
        size = max(len(window) * ratio // 100, min(len(window), 1))
        assert len(keys) == (size if limit < 0 else min(size, limit))
        assert set(keys) <= window
        left = window - used
        if len(left) >= len(keys):
            assert set(keys) <= left
            used |= set(keys)
        else:
            assert left <= set(keys)
            used = set(keys) & used


def window_positions(ends: Sequence[int], trigger_id: int, tail: int | None) -> set[int]:
    start = 0 if tail is None or tail >= trigger_id else ends[trigger_id - tail - 1]
    return set(range(start, ends[trigger_id]))


@pytest.mark.slow
def test_three_epochs_over_many_chunks_visit_each_sample_three_times_and_draw_uniformly() -> None:
    section = {"name": "CoresetStrategy", "presampling_config": {"strategy": "RandomNoReplacement", "ratio": 30}}
    found = run_of(section, batch(np.zeros(200_000)), [200_000] * 10)
    assert set(np.bincount(np.concatenate(found)).tolist()) == {3}
    for keys in found:
        assert_equally_likely(np.bincount(np.array(keys) // 2000).tolist())


@given(
    ends=st.lists(st.integers(0, 60), min_size=1, max_size=6).map(sorted),
    percent=st.integers(1, 99),
    limit=st.sampled_from([-1, 1, 7, 30]),
    tail=st.sampled_from([None, 0, 2]),
    deleted=st.lists(st.integers(0, 59), max_size=20),
)
def test_freshness_is_the_largest_set_with_its_share(
    ends: list[int], percent: int, limit: int, tail: int | None, deleted: list[int]
) -> None:
    section = {"name": "FreshnessSamplingStrategy", "unused_data_ratio": percent, "tail_triggers": tail, "limit": limit}
    found = run_of(section, batch(np.zeros(60)), ends, lambda trigger_id: deleted[: 3 * trigger_id])
    used: set[int] = set()
    for trigger_id, keys in enumerate(found):
        window = window_positions(ends, trigger_id, tail) - set(deleted[: 3 * trigger_id])
        fresh, again = window - used, window & used
        sizes = len(set(keys) & fresh), len(set(keys) & again)
        assert sum(sizes) == len(keys)
        most = len(window) if limit < 0 else min(len(window), limit)
        if fresh and again:
            assert sizes in largest_mixtures(len(fresh), len(again), percent, most)
        else:
            assert len(keys) == most
        used |= set(keys)


def largest_mixtures(fresh: int, again: int, percent: int, most: int) -> set[tuple[int, int]]:
    """Try all sizes: the largest of at most `most` whose shares, before rounding, are there; rounded by the larger remainder."""
    size = max(size for size in range(1, most + 1) if size * percent <= 100 * fresh and size * (100 - percent) <= 100 * again)
    whole, rest = divmod(size * percent, 100)
    return {(up, size - up) for up in (whole, whole + 1) if (up == whole and rest <= 50) or (up > whole and rest >= 50)}


@pytest.mark.slow
def test_an_unused_sample_and_a_used_one_are_drawn_uniformly() -> None:
    """Ten used samples and twenty others; of each kind five are drawn."""
    counts = np.zeros(30, np.int64)
    for seed in range(400):
        with FakeSelectorClient() as client:
            section = {"name": "FreshnessSamplingStrategy", "maximum_keys_in_memory": 10, "limit": 10}
            client.register_run(RunRegistration(RUN, "d", section, seed))
            client.inform(RUN, 0, batch(np.zeros(30)))
            client.trigger(RUN, 0, 10)
            client.trigger(RUN, 1, 30)
            counts[client.runs[RUN].sets[1].keys // 3] += 1
    assert (counts[:10].sum(), counts[10:].sum()) == (2000, 2000)
    assert_equally_likely(counts[:10].tolist())
    assert_equally_likely(counts[10:].tolist())


POLICIES: dict[str, dict[str, Any]] = {
    strategy: {"name": "CoresetStrategy", "presampling_config": {"strategy": strategy, "ratio": 40, **options}}
    for strategy, options in {
        "Random": {},
        "LabelBalanced": {},
        "Stratified": {},
        "TriggerBalanced": {},
        "TimeWeighted": {"half_life": 100},
        "RandomNoReplacement": {},
    }.items()
}
POLICIES |= {
    f"{strategy} by a column": {
        "name": "CoresetStrategy",
        "presampling_config": {"strategy": strategy, "ratio": 40, "column": "site"},
    }
    for strategy in ("ColumnBalanced", "Stratified")
}
POLICIES["Freshness"] = {"name": "FreshnessSamplingStrategy", "unused_data_ratio": 30}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_window_of_which_all_is_deleted_selects_nothing_and_the_next_continues(policy: str) -> None:
    deleted = {1: range(200), 2: range(150)}
    found = run_of(POLICIES[policy], batch(np.arange(400) % 5), [200, 200, 400], lambda trigger_id: deleted.get(trigger_id, ()))
    assert [len(keys) for keys in found[:2]] == [80 if policy != "Freshness" else 200, 0]
    assert len(found[2]) > 0
    assert min(found[2]) >= 150


def test_a_label_whose_samples_are_all_deleted_has_no_share() -> None:
    section = {"name": "CoresetStrategy", "presampling_config": {"strategy": "LabelBalanced", "ratio": 30}}
    labels = np.arange(300) % 3
    first, second = run_of(
        section, batch(labels), [300, 300], lambda trigger_id: np.flatnonzero(labels == 1).tolist() if trigger_id else ()
    )
    assert Counter(labels[first].tolist()) == {0: 30, 1: 30, 2: 30}
    assert Counter(labels[second].tolist()) == {0: 30, 2: 30}


@pytest.fixture
def selector(database: Database, tmp_path: Path) -> Iterator[Selector]:
    made = Selector(database, tmp_path, lambda dataset, identity: NO_KEYS, sites)
    yield made
    made.close()


@pytest.mark.parametrize("policy", POLICIES)
def test_both_backends_and_the_fake_select_the_same(selector: Selector, policy: str) -> None:
    """Cuts and repetitions of the stream on its way in do not matter."""
    found, ends = {}, (0, 400, 400, 1000, 1500)
    fake, labels = FakeSelectorClient(read_column=sites), np.random.default_rng(3).geometric(0.4, 1500)
    for backend, one, step in (("local", selector, 50), ("database", selector, 333), ("fake", fake, 1500)):
        run_id = RunId(f"run-{backend}")
        section = {"maximum_keys_in_memory": 37, "tail_triggers": 2, **POLICIES[policy]}
        section |= {"storage_backend": "database"} if backend == "database" else {}
        one.register_run(RunRegistration(run_id, "d", section, 5))
        for first in range(0, 1500, step):
            again = max(first - 7, 0)
            held = one.inform(run_id, again, batch(labels[again : first + step], first=again))
            assert held == min(first + step, 1500)
        found[backend] = [one.trigger(run_id, trigger_id, end) for trigger_id, end in enumerate(ends)]
    checksums = [[info.keys_checksum for info in found[backend]] for backend in found]
    assert checksums[0] == checksums[1] == checksums[2]
    assert all(0 < info.num_keys < 1500 for info in found["local"][1:])


@pytest.mark.parametrize("policy", ["LabelBalanced", "Random", "RandomNoReplacement", "Freshness", "ColumnBalanced by a column"])
def test_memory_is_bounded_by_the_keys_configured_not_by_the_data(selector: Selector, policy: str) -> None:
    """Two million samples, 16 MB a column, of which 65,536 keys are held at once."""
    selector.register_run(RunRegistration(RUN, "d", {"maximum_keys_in_memory": 65_536, **POLICIES[policy]}, 1))
    for first in range(0, 2_000_000, 500_000):
        selector.inform(RUN, first, batch(np.arange(500_000) % 1000, first=first))
    selector.trigger(RUN, 0, 1_000_000)
    tracemalloc.start()
    try:
        info = selector.trigger(RUN, 1, 2_000_000)
        assert max(len(chunk) for chunk in selector.keys(RUN, 1, 0)) <= 65_536
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert info.num_keys >= 800_000
    assert peak < 10 * 2**20
