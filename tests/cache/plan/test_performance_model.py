"""The performance model against its equations written out sample by sample, its limits, its units, and the cases of the paper."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modyn.cache.plan.performance_model import (
    PURE,
    SPLITS,
    TIE,
    AccessRates,
    CacheStore,
    DatasetSizes,
    Split,
    TrainingNodes,
    Workload,
    access_rates,
    augmented_limits,
    coordinated_samples_by_way,
    decoded_limits,
    encoded_limits,
    predict,
    ring_bytes_per_sample,
    samples_by_way,
    storage_limits,
    throughput,
    throughput_by_times,
)
from modyn.errors import InvalidArgumentError
from tests.cache.seneca_cases import FOOTPRINTS, GBIT, KB, PRINTED, SERVERS, case, table

DOCUMENT = Path(__file__).parents[3] / "benchmark/cache/paper_cases.md"

RATES = st.floats(1, 1e5)
BANDWIDTHS = st.floats(1e5, 1e11)
NODES = st.builds(
    TrainingNodes,
    decode_and_augment_samples_per_s=RATES,
    augment_samples_per_s=RATES | st.just(math.inf),
    accelerator_samples_per_s=RATES | st.just(math.inf),
    network_bytes_per_s=BANDWIDTHS | st.just(math.inf),
    pcie_bytes_per_s=BANDWIDTHS | st.just(math.inf),
    network_gradient_bytes_per_sample=st.just(0.0) | st.floats(0, 1e7),
    pcie_gradient_bytes_per_sample=st.just(0.0) | st.floats(0, 1e7),
    num_nodes=st.integers(1, 8),
)
SIZES = st.builds(DatasetSizes, st.integers(1, 10**7), st.floats(100, 1e6), st.floats(0.5, 20), st.floats(0.5, 20))
WORKLOADS = st.builds(Workload, NODES, SIZES, BANDWIDTHS, st.booleans())
CACHES = st.builds(CacheStore, st.integers(0, 10**13), BANDWIDTHS, st.booleans())
SPLIT_ROWS = st.integers(0, len(SPLITS) - 1)

WORKLOAD = Workload(
    TrainingNodes(2000, 4000, 5000, network_bytes_per_s=1e9, pcie_bytes_per_s=32e9), DatasetSizes(1_000_000, 1e5, 5, 5), 5e7
)
CACHE = CacheStore(50 * 10**9, 1e9)


def written_out(workload: Workload, cache: CacheStore, split: Split) -> float:
    """Equations 1 to 9 as in the paper, except that decoded and augmented samples have their own sizes."""
    node, data, n = workload.nodes, workload.dataset, workload.nodes.num_nodes
    decoded, augmented = data.decoded_inflation * data.encoded_bytes, data.augmented_inflation * data.encoded_bytes

    def network(size: float, crosses: bool) -> float:
        return n * node.network_bytes_per_s / (size + node.network_gradient_bytes_per_sample) if crosses else math.inf

    pcie = n * node.pcie_bytes_per_s / (augmented + node.pcie_gradient_bytes_per_sample)
    last = min(pcie, n * node.accelerator_samples_per_s)
    remote = cache.crosses_network
    dsi_a = min(cache.bytes_per_s / augmented, network(augmented, remote), last)
    n_a = min(data.num_samples, split.augmented / 100 * cache.size_bytes / augmented)
    dsi_d = min(cache.bytes_per_s / decoded, network(decoded, remote), n * node.augment_samples_per_s, last)
    n_d = min(data.num_samples - n_a, split.decoded / 100 * cache.size_bytes / decoded)
    cpu = n * node.decode_and_augment_samples_per_s
    dsi_e = min(cache.bytes_per_s / data.encoded_bytes, network(data.encoded_bytes, remote), cpu, last)
    n_e = min(data.num_samples - (n_a + n_d), split.encoded / 100 * cache.size_bytes / data.encoded_bytes)
    way_of_storage = network(data.encoded_bytes, workload.storage_crosses_network)
    dsi_s = min(dsi_e, workload.storage_bytes_per_s / data.encoded_bytes, way_of_storage)
    n_s = data.num_samples - n_a - n_d - n_e
    return (n_a * dsi_a + n_d * dsi_d + n_e * dsi_e + n_s * dsi_s) / data.num_samples


@given(WORKLOADS, CACHES)
def test_predictions_are_the_equations_written_out(workload: Workload, cache: CacheStore) -> None:
    found = predict(workload, cache)
    splits = [Split(e, d, 100 - e - d) for e in range(0, 101, 10) for d in range(0, 101 - e, 10)]
    expected = [written_out(workload, cache, split) for split in splits]
    assert [found.of(split) for split in splits] == pytest.approx(expected, rel=1e-9)
    assert found.best_samples_per_s >= max(expected) * (1 - 1e-9)


def test_all_splits_stand_in_the_list_once_and_are_found_there() -> None:
    assert len(SPLITS) == 5151
    assert {Split(*row) for row in SPLITS.tolist()} == {
        Split(e, d, a) for e, d, a in product(range(101), repeat=3) if e + d + a == 100
    }
    found = predict(WORKLOAD, CACHE)
    assert [found.of(Split(*row)) for row in SPLITS.tolist()] == found.samples_per_s.tolist()


@given(SIZES, st.integers(0, 10**13), SPLIT_ROWS)
def test_every_sample_takes_one_way(sizes: DatasetSizes, size_bytes: int, at: int) -> None:
    samples = samples_by_way(sizes, size_bytes, SPLITS[at : at + 1] / 100)
    assert samples.min() >= 0
    assert samples.sum() == pytest.approx(sizes.num_samples)
    bytes_by_way = samples[0, :3] * [sizes.augmented_bytes, sizes.decoded_bytes, sizes.encoded_bytes]
    assert (bytes_by_way <= SPLITS[at, ::-1] / 100 * size_bytes * (1 + 1e-9)).all()


@given(WORKLOADS, CACHES)
def test_an_empty_cache_is_storage_through_it_and_no_cache_is_storage_alone(workload: Workload, cache: CacheStore) -> None:
    found = predict(workload, replace(cache, size_bytes=0))
    assert np.allclose(found.samples_per_s, access_rates(workload, cache).storage, rtol=1e-9)
    fast = predict(workload, CacheStore(0, 1e300, crosses_network=False))
    assert found.without_cache_samples_per_s == pytest.approx(fast.best_samples_per_s)
    assert found.best_samples_per_s <= found.without_cache_samples_per_s * (1 + 1e-9)


NODE_RATES = (
    "decode_and_augment_samples_per_s",
    "augment_samples_per_s",
    "accelerator_samples_per_s",
    "network_bytes_per_s",
    "pcie_bytes_per_s",
    "num_nodes",
)


@pytest.mark.parametrize("faster", ["storage_bytes_per_s", "cache", *NODE_RATES])
@given(workload=WORKLOADS, cache=CACHES, factor=st.integers(1, 20))
def test_faster_parts_are_never_slower_at_any_split(faster: str, workload: Workload, cache: CacheStore, factor: int) -> None:
    before = predict(workload, cache)
    if faster == "cache":
        cache = replace(cache, bytes_per_s=cache.bytes_per_s * factor)
    elif faster in NODE_RATES:
        values: dict[str, Any] = {faster: getattr(workload.nodes, faster) * factor}
        workload = replace(workload, nodes=replace(workload.nodes, **values))
    else:
        workload = replace(workload, storage_bytes_per_s=workload.storage_bytes_per_s * factor)
    after = predict(workload, cache)
    assert (after.samples_per_s >= before.samples_per_s * (1 - 1e-9)).all()
    assert after.without_cache_samples_per_s >= before.without_cache_samples_per_s


def scaled(workload: Workload, cache: CacheStore, seconds: int, byte: int) -> tuple[Workload, CacheStore]:
    """Return the same in smaller units: `seconds` and `byte` are the numbers of new units in an old one."""
    nodes, sizes = workload.nodes, workload.dataset
    return (
        Workload(
            TrainingNodes(
                nodes.decode_and_augment_samples_per_s / seconds,
                nodes.augment_samples_per_s / seconds,
                nodes.accelerator_samples_per_s / seconds,
                nodes.network_bytes_per_s * byte / seconds,
                nodes.pcie_bytes_per_s * byte / seconds,
                nodes.network_gradient_bytes_per_sample * byte,
                nodes.pcie_gradient_bytes_per_sample * byte,
                nodes.num_nodes,
            ),
            replace(sizes, encoded_bytes=sizes.encoded_bytes * byte),
            workload.storage_bytes_per_s * byte / seconds,
            workload.storage_crosses_network,
        ),
        CacheStore(cache.size_bytes * byte, cache.bytes_per_s * byte / seconds, cache.crosses_network),
    )


@given(WORKLOADS, CACHES, st.integers(1, 1000), st.integers(1, 1000))
def test_units_cancel(workload: Workload, cache: CacheStore, seconds: int, byte: int) -> None:
    """In milliseconds and bits, for example, each throughput is a thousandth of that in seconds and bytes."""
    found, in_other_units = predict(workload, cache), predict(*scaled(workload, cache, seconds, byte))
    assert np.allclose(in_other_units.samples_per_s * seconds, found.samples_per_s, rtol=1e-9, atol=0)


@given(WORKLOADS, CACHES, st.integers(1, 20))
def test_augmented_samples_are_worth_what_they_serve(workload: Workload, cache: CacheStore, num_trainings: int) -> None:
    rates, shared = access_rates(workload, cache), access_rates(workload, cache, num_trainings)
    assert shared[1:] == rates[1:]
    prepared = 1 / num_trainings
    assert shared.augmented == pytest.approx(prepared * rates.storage + (1 - prepared) * rates.augmented)
    if num_trainings == 1:
        found = predict(workload, cache, 1)
        assert found.of(Split(0, 0, 100)) == pytest.approx(rates.storage)
        assert found.best.augmented == 0 or found.best_samples_per_s == pytest.approx(rates.storage)


def test_a_single_training_gets_no_augmented_samples_where_many_get_nothing_else() -> None:
    slow_to_augment = replace(
        WORKLOAD, nodes=replace(WORKLOAD.nodes, decode_and_augment_samples_per_s=100, augment_samples_per_s=150)
    )
    assert predict(slow_to_augment, CACHE, 8).best == Split(0, 0, 100)
    assert predict(slow_to_augment, CACHE, 1).best.augmented == 0


@settings(max_examples=15, deadline=None)
@given(WORKLOADS, CACHES)
def test_ties_are_all_splits_near_the_best_and_regret_is_what_is_missed(workload: Workload, cache: CacheStore) -> None:
    found = predict(workload, cache)
    best = max(found.samples_per_s.tolist())
    for tolerance in (0.0, TIE, 0.05):
        near = [
            row
            for row, value in zip(SPLITS.tolist(), found.samples_per_s.tolist(), strict=True)
            if value >= (1 - tolerance) * best
        ]
        assert found.ties(tolerance) == [Split(*row) for row in near]
    assert found.best == min(found.ties(), key=lambda split: (split.augmented, split.encoded > 0, split.decoded))
    assert found.regret(found.best) <= TIE * (1 + 1e-9)
    for split in PURE:
        assert found.of(split) == pytest.approx((1 - found.regret(split)) * best)
        assert 0 <= found.regret(split) < 1


@given(WORKLOADS, CACHES, st.floats(0, 1))
def test_a_cache_smaller_than_the_dataset_in_every_form_needs_one_form_only(
    workload: Workload, cache: CacheStore, part: float
) -> None:
    sizes = workload.dataset
    least = min(sizes.encoded_bytes, sizes.decoded_bytes, sizes.augmented_bytes)
    found = predict(workload, replace(cache, size_bytes=int(part * sizes.num_samples * least)))
    assert max(found.of(split) for split in PURE) == pytest.approx(found.best_samples_per_s)


def test_two_forms_are_best_where_all_samples_fit_and_room_is_left() -> None:
    """100 GB encoded, 500 GB decoded: 200 GB hold all, and a part of them decoded."""
    nodes = replace(WORKLOAD.nodes, decode_and_augment_samples_per_s=1000, network_bytes_per_s=1e10)
    slow_storage = replace(WORKLOAD, nodes=nodes, storage_bytes_per_s=5e6)
    found = predict(slow_storage, CacheStore(200 * 10**9, 1e10), num_trainings=1)
    assert found.best == Split(37, 63, 0)
    assert found.best_samples_per_s == pytest.approx(0.252 * 4000 + 0.74 * 1000 + 0.008 * 50)


def test_a_ring_sends_the_model_nearly_twice_and_not_at_all_to_itself() -> None:
    assert ring_bytes_per_sample(1e6, 1, 10) == 0
    assert ring_bytes_per_sample(1e6, 4, 10) == 1.5e5
    for wrong in ((1e6, 0, 10), (1e6, 2, 0), (-1.0, 2, 10)):
        with pytest.raises(InvalidArgumentError, match="no ring"):
            ring_bytes_per_sample(*wrong)


def test_a_split_is_read_as_it_is_written() -> None:
    for row in SPLITS[::97].tolist():
        assert Split.parse(str(Split(*row))) == Split(*row)


@pytest.mark.parametrize(
    "text", ["", "58-42", "58-42-1", "-1-1-100", "58-42-0-0", "a-b-c", "50.0-50.0-0", "²-98-0", "1000-0-0", "58 -42-0"]
)
def test_a_text_that_is_not_a_split_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a split of a cache: write"):
        Split.parse(text)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrainingNodes(0), "decode_and_augment_samples_per_s is 0; it must be greater than 0 and finite"),
        (lambda: TrainingNodes(math.inf), "decode_and_augment_samples_per_s is inf"),
        (lambda: TrainingNodes(1, math.nan), "augment_samples_per_s is nan; it must be greater than 0$"),
        (lambda: TrainingNodes(1, num_nodes=0), "num_nodes is 0; it must be at least 1 and finite"),
        (
            lambda: TrainingNodes(1, pcie_gradient_bytes_per_sample=-1),
            "pcie_gradient_bytes_per_sample is -1; it must be at least 0",
        ),
        (lambda: DatasetSizes(0, 1, 1, 1), "num_samples is 0; it must be greater than 0"),
        (lambda: DatasetSizes(1, 1, 0, 1), "decoded_inflation is 0"),
        (lambda: Workload(TrainingNodes(1), DatasetSizes(1, 1, 1, 1), math.inf), "storage_bytes_per_s is inf"),
        (lambda: CacheStore(-1, 1), "size_bytes is -1; it must be at least 0 and finite"),
        (lambda: CacheStore(1, math.inf), "bytes_per_s is inf; it must be greater than 0 and finite"),
        (lambda: access_rates(WORKLOAD, CACHE, 0), "0 trainings cannot share a cache"),
    ],
)
def test_what_cannot_be_measured_is_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make()


def test_the_limits_of_the_papers_validated_server() -> None:
    """Table 5, in-house, by hand: 10 Gbit/s carry 1.25e9 bytes/s, a tensor has 5.12 × 114 KiB = 597,688.32 bytes."""
    workload, cache = case("in-house", 1, "ImageNet-1K")
    tensors = 1.25e9 / 597_688.32
    assert augmented_limits(workload, cache) == pytest.approx(
        {"the cache": tensors, "the network": tensors, "PCIe": 32 * 2**30 / 597_688.32, "the accelerator": 4550}
    )
    assert decoded_limits(workload, cache) == augmented_limits(workload, cache) | {"augmenting": 4050}
    images = 1.25e9 / (114.62 * 1024)
    encoded = {
        "the cache": images,
        "the network": images,
        "decoding": 2132,
        "PCIe": 32 * 2**30 / 597_688.32,
        "the accelerator": 4550,
    }
    assert encoded_limits(workload, cache) == pytest.approx(encoded)
    assert storage_limits(workload, cache) == pytest.approx(encoded | {"storage": 500 * 2**20 / (114.62 * 1024)})


def test_two_in_house_servers_are_limited_by_the_cache_as_the_paper_says() -> None:
    """Section 6: with two servers, B_cache is the bottleneck of the preprocessed forms."""
    workload, cache = case("in-house", 2, "ImageNet-1K")
    for limits in (augmented_limits(workload, cache), decoded_limits(workload, cache)):
        assert sorted(limits, key=lambda name: limits[name])[0] == "the cache"
        assert sorted(limits.values())[1] > 1.9 * limits["the cache"]


def test_the_printed_split_is_near_the_best_for_any_meaning_of_its_units() -> None:
    """58-42-0: which split is best depends on whether a KB is 1000 or 1024 bytes, and a Gbit 10⁹ or 2³⁰ bits; the printed one never is."""
    readings = list(product((1000, KB), (GBIT, 2**30 / 8)))
    found = [predict(*case("in-house", 1, "ImageNet-1K", *reading)) for reading in readings]
    assert len({str(predictions.best) for predictions in found}) > 1
    assert all(4e-4 < predictions.regret(PRINTED) < 0.0072 for predictions in found)
    assert all(predictions.best_samples_per_s < 1.013 * predictions.without_cache_samples_per_s for predictions in found)


def test_large_datasets_are_cached_encoded_as_the_paper_says() -> None:
    """Section 7.4: ImageNet-22K on one Azure server with 400 GB gets 100-0-0."""
    assert predict(*case("Azure", 1, "ImageNet-22K")).best == Split(100, 0, 0)


def test_decoded_open_images_on_aws_do_not_follow_from_the_parameters() -> None:
    """Section 7.4 says that more of them are cached decoded there; the cache delivers tensors more slowly than the CPUs decode images."""
    workload, cache = case("AWS", 1, "OpenImages")
    assert predict(workload, cache).best == Split(100, 0, 0)
    assert access_rates(workload, cache).decoded < access_rates(workload, cache).encoded == 3432


def test_tensors_come_more_slowly_from_the_papers_caches_than_images_are_decoded() -> None:
    """Section 6 states the opposite for small datasets."""
    ratios = {}
    for server in SERVERS:
        rates = access_rates(*case(*server, "ImageNet-1K"))
        assert rates.augmented == rates.decoded
        ratios[server] = rates.encoded / rates.augmented
    assert ratios.pop(("in-house", 1)) == pytest.approx(1.02, abs=0.005)
    assert all(1.5 < ratio < 3.2 for ratio in ratios.values())


def test_the_documented_table_is_what_is_computed() -> None:
    text = DOCUMENT.read_text()
    lines = table()
    assert len(lines) == len(SERVERS) * len(FOOTPRINTS)
    assert "\n".join(lines) in text


def test_samples_that_come_one_after_the_other_take_the_mean_of_their_times() -> None:
    """Half of the samples at 100 and half at 300 samples/s: 150, where equation 9 says 200. Never more than that."""
    samples, rates = np.array([[50.0, 50.0, 0.0, 0.0]]), AccessRates(100.0, 300.0, 10.0, 10.0)
    assert throughput_by_times(samples, rates) == pytest.approx([150.0])
    assert throughput(samples, rates) == pytest.approx([200.0])
    generator = np.random.default_rng(0)
    samples, rates = generator.random((100, 4)), AccessRates(*generator.uniform(1, 100, 4).tolist())
    assert (throughput_by_times(samples, rates) <= throughput(samples, rates) + 1e-9).all()


def test_trainings_in_step_serve_each_other_all_but_their_own_share() -> None:
    """Four trainings with room for a twentieth: three quarters are augmented, half of the rest is decoded, and the others come from storage."""
    dataset = DatasetSizes(1000, 100.0, 2.0, 2.0)
    parts = np.array([[0.0, 0.5, 0.5], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    found = coordinated_samples_by_way(dataset, 200_000, parts, 4, 50)
    assert found == pytest.approx(np.array([[750, 125, 0, 125], [750, 0, 0, 250], [0, 1000, 0, 0]]))
    little = coordinated_samples_by_way(dataset, 5_000, np.array([[0.0, 0.0, 1.0]]), 4, 50)
    assert little == pytest.approx(np.array([[375, 0, 0, 625]]))
    kept = replace(dataset, keeps_augmented=False)
    assert coordinated_samples_by_way(kept, 200_000, parts[:1], 4, 50) == pytest.approx(np.array([[0, 500, 0, 500]]))
