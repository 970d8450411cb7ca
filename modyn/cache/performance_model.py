"""What a cache split between encoded, decoded and augmented samples is predicted to bring. Pure functions of measured rates and sizes.

Four ways lead a sample to the accelerator: from the cache in one of three forms, or from storage. The slowest component of a way limits its rate;
the throughput is the mean of the four rates, weighted by how many samples take each way. Rates are samples/s or bytes/s, of all trainings together.

Source: Desai and others, Preparation Meets Opportunity (Seneca), FAST 2026, section 5.1: table 3 and equations 1 to 9. docs/cache.md says where
this goes beyond it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from modyn.errors import InvalidArgumentError

FloatArray = npt.NDArray[np.float64]
Limits = dict[str, float]
"""What each component on the way of a sample lets through, in samples/s. The least is the rate of the way."""

COORDINATED_SHARE: Final = 0.05
"""Part of the samples that trainings in step need room for to miss nothing of each other: by `python -m benchmark.cache simulate`."""
COORDINATED_BATCHES: Final = 2
"""Batches of each training that they need room for besides those that are being made, for trainings are never quite in step. Measured with 4 of them:
12 batches sufficed, 5 brought three quarters of the hits."""
TIE: Final = 1e-5
"""Splits whose throughput is below the best by no larger part than this are as good as it: more digits than any measured rate has."""


@dataclass(frozen=True, slots=True)
class TrainingNodes:
    """The machines that train, all alike. Rates of one of them, as all its trainings share them (table 3). `inf`: never the limit."""

    decode_and_augment_samples_per_s: float
    """T_D+A: from stored bytes to tensors that the accelerator takes."""
    augment_samples_per_s: float = math.inf
    """T_A: the random transformations alone."""
    accelerator_samples_per_s: float = math.inf
    """T_GPU: how fast the accelerators train."""
    network_bytes_per_s: float = math.inf
    """B_NIC."""
    pcie_bytes_per_s: float = math.inf
    """B_PCIe: from memory to the accelerators."""
    network_gradient_bytes_per_sample: float = 0.0
    """C_nw: what nodes send each other of gradients, see `ring_bytes_per_sample`."""
    pcie_gradient_bytes_per_sample: float = 0.0
    """C_PCIe: what the accelerators of a node send each other of gradients; 0 where they have links of their own, such as NVLink."""
    num_nodes: int = 1
    """n."""

    def __post_init__(self) -> None:
        least = {"network_gradient_bytes_per_sample": 0.0, "pcie_gradient_bytes_per_sample": 0.0, "num_nodes": 1.0}
        _check_numbers(self, finite={"decode_and_augment_samples_per_s", *least}, least=least)


@dataclass(frozen=True, slots=True)
class DatasetSizes:
    """How many samples all trainings read in an epoch, and how large one is on average in each form."""

    num_samples: int
    """N_total."""
    encoded_bytes: float
    """S_data: as stored."""
    decoded_inflation: float
    """M: a decoded sample is this many times as large as an encoded one."""
    augmented_inflation: float
    """M of augmented samples; the paper has one M for both."""
    keeps_decoded: bool = True
    """False: no cache can keep decoded samples, and what it has for them stays empty."""
    keeps_augmented: bool = True

    def __post_init__(self) -> None:
        _check_numbers(self, finite={"num_samples", "encoded_bytes", "decoded_inflation", "augmented_inflation"})

    @property
    def decoded_bytes(self) -> float:
        """M × S_data."""
        return self.decoded_inflation * self.encoded_bytes

    @property
    def augmented_bytes(self) -> float:
        """M × S_data of augmented samples."""
        return self.augmented_inflation * self.encoded_bytes

    def fitting(self, size_bytes: float) -> FloatArray:
        """(3,), how many samples of each form fit into so many bytes, augmented, decoded and encoded ones; 0 of those that cannot be kept."""
        is_kept = np.array([self.keeps_augmented, self.keeps_decoded, True])
        return np.asarray(size_bytes / np.array([self.augmented_bytes, self.decoded_bytes, self.encoded_bytes]) * is_kept)


@dataclass(frozen=True, slots=True)
class Workload:
    """All that the throughput without a cache follows from."""

    nodes: TrainingNodes
    dataset: DatasetSizes
    storage_bytes_per_s: float
    """B_storage: what all nodes together can read."""
    storage_crosses_network: bool = True
    """False: storage is a disk of the node, and B_NIC does not limit it."""

    def __post_init__(self) -> None:
        _check_numbers(self, finite={"storage_bytes_per_s"})


@dataclass(frozen=True, slots=True)
class CacheStore:
    """Memory that holds cached samples: a server, or shared memory of the node, where a cached sample crosses no network."""

    size_bytes: int
    """S_cache, in equations 2, 4 and 6 called S_mem."""
    bytes_per_s: float
    """B_cache: what all nodes together can read."""
    crosses_network: bool = True
    """False: it is on the node that trains, and B_NIC does not limit it."""
    page_bytes: int = 0
    """A sample takes whole pages of so many bytes; 0: as many bytes as it has. Not in the paper, nor is the next one."""
    overhead_bytes: int = 0
    """Which a sample takes beside these."""

    def __post_init__(self) -> None:
        least = dict.fromkeys(("size_bytes", "page_bytes", "overhead_bytes"), 0.0)
        _check_numbers(self, finite={"bytes_per_s", *least}, least=least)

    def taken(self, dataset: DatasetSizes) -> DatasetSizes:
        """The samples, each as large as what it takes here. Where their sizes differ, the means are off by half a page at most."""
        sizes = (dataset.encoded_bytes, dataset.decoded_bytes, dataset.augmented_bytes)
        one, *others = (size + self.overhead_bytes + (-round(size) % self.page_bytes if self.page_bytes else 0) for size in sizes)
        decoded, augmented = (other / one for other in others)
        return DatasetSizes(dataset.num_samples, one, decoded, augmented, dataset.keeps_decoded, dataset.keeps_augmented)


@dataclass(frozen=True, slots=True, order=True)
class Split:
    """x_E, x_D, x_A: how a cache is divided between the forms, in percent of its bytes. Written 58-42-0."""

    encoded: int
    decoded: int
    augmented: int

    def __post_init__(self) -> None:
        if min(self.encoded, self.decoded, self.augmented) < 0 or self.encoded + self.decoded + self.augmented != 100:
            raise InvalidArgumentError(
                f"{self} is no split of a cache: write whole percents from 0 on that add up to 100, as 58-42-0"
            )

    def __str__(self) -> str:
        return f"{self.encoded}-{self.decoded}-{self.augmented}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` writes. Raises InvalidArgumentError.

        >>> Split.parse("58-42-0")
        Split(encoded=58, decoded=42, augmented=0)
        """
        parts = text.split("-")
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) <= 3 for part in parts):
            raise InvalidArgumentError(
                f"{text!r} is no split of a cache: write percents as encoded-decoded-augmented, as 58-42-0"
            )
        return cls(*map(int, parts))


SPLITS: Final[npt.NDArray[np.int64]] = np.array(
    [(100 - decoded - augmented, decoded, augmented) for augmented in range(101) for decoded in range(101 - augmented)], np.int64
)
"""(5151, 3), all splits in percent: encoded, decoded, augmented. The fewest augmented first, of these the most encoded."""
SPLITS.setflags(write=False)
PURE: Final = (Split(100, 0, 0), Split(0, 100, 0), Split(0, 0, 100))
"""The splits with one form."""


class AccessRates(NamedTuple):
    """Samples/s of each way, if all samples took it."""

    augmented: float
    decoded: float
    encoded: float
    storage: float


def ring_bytes_per_sample(model_bytes: float, num_members: int, samples_per_batch: float) -> float:
    """C_nw or C_PCIe where gradients are reduced in a ring: 2 (n - 1) / n × the size of the model for each batch, divided by its samples.

    Args: num_members: n, nodes for C_nw, accelerators of a node for C_PCIe. samples_per_batch: of one member.

    >>> ring_bytes_per_sample(100e6, 2, 200)
    500000.0
    """
    if num_members < 1 or samples_per_batch <= 0 or model_bytes < 0:
        raise InvalidArgumentError(
            f"no ring of {num_members} members exchanges a model of {model_bytes} bytes after {samples_per_batch} samples: "
            "there is at least one member, a batch has samples, and a size is at least 0"
        )
    return 2 * (num_members - 1) / num_members * model_bytes / samples_per_batch


def augmented_limits(workload: Workload, cache: CacheStore) -> Limits:
    """What limits reading augmented samples from the cache. Equation 1."""
    augmented_bytes = workload.dataset.augmented_bytes
    return _from_cache(workload.nodes, cache, augmented_bytes) | _to_accelerator(workload)


def decoded_limits(workload: Workload, cache: CacheStore) -> Limits:
    """What limits reading decoded samples from the cache and augmenting them. Equation 3."""
    nodes = workload.nodes
    augment = {"augmenting": nodes.num_nodes * nodes.augment_samples_per_s}
    return _from_cache(nodes, cache, workload.dataset.decoded_bytes) | augment | _to_accelerator(workload)


def encoded_limits(workload: Workload, cache: CacheStore) -> Limits:
    """What limits reading encoded samples from the cache, decoding and augmenting them. Equation 5."""
    return _from_cache(workload.nodes, cache, workload.dataset.encoded_bytes) | _decoding(workload) | _to_accelerator(workload)


def storage_limits(workload: Workload, cache: CacheStore | None) -> Limits:
    """What limits reading samples from storage, decoding and augmenting them. Equation 7: what limits encoded samples limits these too, for the
    cache was asked first. Args: cache: None: there is none, and so it limits nothing."""
    encoded_bytes = workload.dataset.encoded_bytes
    limits = {"storage": workload.storage_bytes_per_s / encoded_bytes}
    if workload.storage_crosses_network:
        limits |= _network(workload.nodes, encoded_bytes)
    return limits | (_decoding(workload) | _to_accelerator(workload) if cache is None else encoded_limits(workload, cache))


def access_rates(workload: Workload, cache: CacheStore, num_trainings: int | None = None) -> AccessRates:
    """The least of each way's limits. Equations 1, 3, 5 and 7.

    Args:
        num_trainings: how many share the cache. An augmented value serves each of them once, and one serving in `num_trainings` is the one
            for which it was prepared, at the rate of storage. None: as in the paper, which counts no preparation.
    """
    augmented, decoded, encoded, storage = (
        min(limits(workload, cache).values()) for limits in (augmented_limits, decoded_limits, encoded_limits, storage_limits)
    )
    if num_trainings is not None:
        if num_trainings < 1:
            raise InvalidArgumentError(f"{num_trainings} trainings cannot share a cache: there is at least one")
        augmented = ((num_trainings - 1) * augmented + storage) / num_trainings
    return AccessRates(augmented, decoded, encoded, storage)


def samples_by_way(dataset: DatasetSizes, size_bytes: float, parts: FloatArray) -> FloatArray:
    """How many samples take each way. Equations 2, 4, 6 and 8: the augmented ones first, the decoded ones of the rest, and so on.

    Args: parts: (k, 3), x_E, x_D, x_A of k splits, each in 0 … 1. Returns: (k, 4), N_A, N_D, N_E, N_storage, which add up to N_total.
    """
    left = np.full(len(parts), float(dataset.num_samples))
    room, samples = parts[:, ::-1] * dataset.fitting(size_bytes), np.empty((len(parts), 4))
    for way in range(3):
        samples[:, way] = np.minimum(left, room[:, way])
        left = left - samples[:, way]
    samples[:, 3] = left
    return samples


def values_in_step(num_samples: int, num_trainings: int, batch_size: int, num_workers: int = 1) -> int:
    """How many augmented values trainings in step need room for, so that they miss nothing of each other. Args: num_workers: of each.

    >>> values_in_step(1_000_000, 4, 64), values_in_step(3_000, 4, 64), values_in_step(100, 4, 64)
    (50000, 768, 100)
    """
    batches = num_trainings * (COORDINATED_BATCHES + max(1, num_workers))
    return min(num_samples, max(int(COORDINATED_SHARE * num_samples), batches * batch_size))


def coordinated_samples_by_way(
    dataset: DatasetSizes, size_bytes: float, parts: FloatArray, num_trainings: int, num_values: int
) -> FloatArray:
    """As `samples_by_way`, where trainings in step prepare augmented samples for each other (sampler `coordinated`); not in the paper.

    Of J trainings each is served (J - 1) / J of all samples by the others, as long as there is room for `num_values`, of `values_in_step`; with less
    room a smaller part. Other forms are held for good, and serve their part of what is left.
    """
    room = parts[:, ::-1] * dataset.fitting(size_bytes) / dataset.num_samples
    samples = np.empty((len(parts), 4))
    samples[:, 0] = np.minimum(1, room[:, 0] * dataset.num_samples / num_values) * (num_trainings - 1) / num_trainings
    left = 1 - samples[:, 0]
    decoded = np.minimum(1, room[:, 1])
    samples[:, 1], samples[:, 2] = left * decoded, left * np.minimum(1 - decoded, room[:, 2])
    samples[:, 3] = 1 - samples[:, :3].sum(axis=1)
    return samples * dataset.num_samples


def throughput(samples: FloatArray, rates: AccessRates) -> FloatArray:
    """Samples/s over all ways: the mean of the rates, weighted by samples. Equation 9.

    Args: samples: (k, 4), of `samples_by_way`. Returns: (k,).
    """
    return np.asarray(samples @ np.array(rates) / samples.sum(axis=1))


def throughput_by_times(samples: FloatArray, rates: AccessRates) -> FloatArray:
    """Samples/s where samples of all ways come one after the other, through the same workers: by the mean of their times; not in the paper.

    Args: samples: (k, 4), of `samples_by_way`. Returns: (k,).
    """
    return np.asarray(samples.sum(axis=1) / (samples @ (1 / np.array(rates))))


@dataclass(frozen=True, slots=True, eq=False)
class SplitPredictions:
    """What every split of a cache is predicted to reach."""

    samples_per_s: FloatArray
    """(5151,), in the order of SPLITS."""
    without_cache_samples_per_s: float
    """What storage alone reaches. A slow cache is below it."""

    @property
    def best_samples_per_s(self) -> float:
        """The largest throughput."""
        return float(self.samples_per_s.max())

    @property
    def best(self) -> Split:
        """Of all splits as good as the best, of those with the fewest augmented samples, which wear out: the one without encoded samples, which then
        has room to spare, if it is among them, else the one with the most encoded ones, of which most fit in."""
        encoded, decoded, augmented = SPLITS[int(np.argmax(self._near_best(TIE)))].tolist()
        spare = Split(0, encoded + decoded, augmented)
        return spare if self.of(spare) >= (1 - TIE) * self.best_samples_per_s else Split(encoded, decoded, augmented)

    def of(self, split: Split) -> float:
        """Samples/s of one split."""
        augmented = split.augmented
        return float(self.samples_per_s[augmented * (203 - augmented) // 2 + split.decoded])

    def regret(self, split: Split) -> float:
        """Which part of the best throughput this split misses, in 0 … 1."""
        return 1 - self.of(split) / self.best_samples_per_s

    def ties(self, tolerance: float = TIE) -> list[Split]:
        """All splits with a regret of at most `tolerance`, in the order of SPLITS."""
        return [Split(*split) for split in SPLITS[self._near_best(tolerance)].tolist()]

    def _near_best(self, tolerance: float) -> npt.NDArray[np.bool_]:
        return self.samples_per_s >= (1 - tolerance) * self.best_samples_per_s


def predict(
    workload: Workload,
    cache: CacheStore,
    num_trainings: int | None = None,
    *,
    num_values_in_step: int = 0,
    by_times: bool = False,
) -> SplitPredictions:
    """Predict the throughput of all splits by steps of 1 %.

    Args: num_trainings: as of `access_rates`. num_values_in_step: these are in step and prepare augmented samples for each other, of which they need
    room for so many, by `values_in_step`; 0: they are not. by_times: as `throughput_by_times`, which is nearer to what trainings reach (`python -m
    benchmark.cache predict`); otherwise by equation 9.
    """
    without = min(storage_limits(workload, None).values())
    mean, taken = throughput_by_times if by_times else throughput, cache.taken(workload.dataset)
    if num_values_in_step:
        samples = coordinated_samples_by_way(taken, cache.size_bytes, SPLITS / 100, num_trainings or 1, num_values_in_step)
        return SplitPredictions(mean(samples, access_rates(workload, cache)), without)
    samples = samples_by_way(taken, cache.size_bytes, SPLITS / 100)
    return SplitPredictions(mean(samples, access_rates(workload, cache, num_trainings)), without)


def _from_cache(nodes: TrainingNodes, cache: CacheStore, sample_bytes: float) -> Limits:
    """B_cache, and B_NIC where the cache is behind it."""
    limits = {"the cache": cache.bytes_per_s / sample_bytes}
    return limits | _network(nodes, sample_bytes) if cache.crosses_network else limits


def _network(nodes: TrainingNodes, sample_bytes: float) -> Limits:
    return {"the network": nodes.num_nodes * nodes.network_bytes_per_s / (sample_bytes + nodes.network_gradient_bytes_per_sample)}


def _decoding(workload: Workload) -> Limits:
    return {"decoding": workload.nodes.num_nodes * workload.nodes.decode_and_augment_samples_per_s}


def _to_accelerator(workload: Workload) -> Limits:
    nodes = workload.nodes
    sample_bytes = workload.dataset.augmented_bytes + nodes.pcie_gradient_bytes_per_sample
    pcie = nodes.num_nodes * nodes.pcie_bytes_per_s / sample_bytes
    return {"PCIe": pcie, "the accelerator": nodes.num_nodes * nodes.accelerator_samples_per_s}


def _check_numbers(record: Any, finite: set[str], least: Mapping[str, float] | None = None) -> None:
    """Raise InvalidArgumentError unless all numbers are greater than 0, or at least as large as `least` says."""
    for name in (field.name for field in dataclasses.fields(record)):
        value = getattr(record, name)
        if isinstance(value, bool) or dataclasses.is_dataclass(value):
            continue
        bound = (least or {}).get(name)
        if not (value > 0 if bound is None else value >= bound) or (name in finite and value == math.inf):
            allowed = "greater than 0" if bound is None else f"at least {bound:g}"
            raise InvalidArgumentError(f"{name} is {value!r}; it must be {allowed}{' and finite' if name in finite else ''}")
