"""Predict the throughput of a cache that is split between encoded, decoded and augmented samples. Pure functions of measured rates and sizes.

A sample reaches the accelerator in one of four ways: from the cache in one of three forms, or from storage. The slowest component of a way limits its
rate. The throughput is the mean of the four rates, weighted by the number of samples that take each way. Rates are samples/s or bytes/s, of all
trainings together.

Source: Desai and others, Preparation Meets Opportunity (Seneca), FAST 2026, section 5.1: table 3 and equations 1 to 9.
benchmark/cache/paper_cases.md lists the differences.
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
"""Rate of each component on the way of a sample, in samples/s. The smallest rate is the rate of the way."""

COORDINATED_SHARE: Final = 0.05
"""Fraction of the dataset's samples for which the cache needs room, so that each training in step finds all values that other trainings made.
Measured by `python -m benchmark.cache simulate`."""
COORDINATED_BATCHES: Final = 2
"""Number of batches of each training for which the cache needs room, in addition to a batch in progress in each worker, because trainings are never
exactly in step. Measured with 4 trainings: room for 12 batches sufficed, and room for 5 batches gave three quarters of the hits."""
TIE: Final = 1e-5
"""Largest relative difference between two throughputs that count as equal. This difference is smaller than the error of any measured rate."""


@dataclass(frozen=True, slots=True)
class TrainingNodes:
    """The machines that train, all equal. Each rate is that of one machine, for all its trainings together (table 3). `inf`: no limit."""

    decode_and_augment_samples_per_s: float
    """T_D+A: rate of decoding and augmenting together."""
    augment_samples_per_s: float = math.inf
    """T_A: rate of the random transformations alone."""
    accelerator_samples_per_s: float = math.inf
    """T_GPU: rate at which the accelerators train."""
    network_bytes_per_s: float = math.inf
    """B_NIC: bytes/s of the network of one machine."""
    pcie_bytes_per_s: float = math.inf
    """B_PCIe: bytes/s from memory to the accelerators."""
    network_gradient_bytes_per_sample: float = 0.0
    """C_nw: bytes of gradients that nodes send each other, see `ring_bytes_per_sample`."""
    pcie_gradient_bytes_per_sample: float = 0.0
    """C_PCIe: bytes of gradients that the accelerators of a node send each other; 0 if they have their own links, such as NVLink."""
    num_nodes: int = 1
    """n: number of these machines."""

    def __post_init__(self) -> None:
        least = {"network_gradient_bytes_per_sample": 0.0, "pcie_gradient_bytes_per_sample": 0.0, "num_nodes": 1.0}
        _check_numbers(self, finite={"decode_and_augment_samples_per_s", *least}, least=least)


@dataclass(frozen=True, slots=True)
class DatasetSizes:
    """Number of samples that all trainings read in an epoch, and the mean size of a sample in each form."""

    num_samples: int
    """N_total."""
    encoded_bytes: float
    """S_data: as stored."""
    decoded_inflation: float
    """M: size of a decoded sample, divided by the size of an encoded sample."""
    augmented_inflation: float
    """M of augmented samples. The paper has one M for decoded and augmented samples."""
    keeps_decoded: bool = True
    """Whether a cache can keep decoded samples. If not, the decoded part of a split stays empty."""
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
        """Return (3,), the number of augmented, decoded and encoded samples that fit; 0 for a form that cannot be kept."""
        is_kept = np.array([self.keeps_augmented, self.keeps_decoded, True])
        return np.asarray(size_bytes / np.array([self.augmented_bytes, self.decoded_bytes, self.encoded_bytes]) * is_kept)


@dataclass(frozen=True, slots=True)
class Workload:
    """Everything that determines the throughput without a cache."""

    nodes: TrainingNodes
    dataset: DatasetSizes
    storage_bytes_per_s: float
    """B_storage: bytes/s that all nodes together can read from storage."""
    storage_crosses_network: bool = True
    """Whether samples from storage cross the network. If not, storage is a disk of the node, and B_NIC does not limit reads."""

    def __post_init__(self) -> None:
        _check_numbers(self, finite={"storage_bytes_per_s"})


@dataclass(frozen=True, slots=True)
class CacheStore:
    """Memory for cached samples: a server, or shared memory of the training node."""

    size_bytes: int
    """S_cache, in equations 2, 4 and 6 called S_mem."""
    bytes_per_s: float
    """B_cache: bytes/s that all nodes together can read from the cache."""
    crosses_network: bool = True
    """Whether samples from the store cross the network. If not, the store is on the training node, and B_NIC does not limit reads."""
    page_bytes: int = 0
    """Page size in bytes: a sample takes whole pages; 0: sizes are not rounded up. The paper has neither this field nor `overhead_bytes`."""
    overhead_bytes: int = 0
    """Additional bytes for each sample."""

    def __post_init__(self) -> None:
        least = dict.fromkeys(("size_bytes", "page_bytes", "overhead_bytes"), 0.0)
        _check_numbers(self, finite={"bytes_per_s", *least}, least=least)

    def taken(self, dataset: DatasetSizes) -> DatasetSizes:
        """Return the sizes of samples in this store, including pages and overhead. If sizes within a form differ, the mean is wrong by at most half a
        page."""
        sizes = (dataset.encoded_bytes, dataset.decoded_bytes, dataset.augmented_bytes)
        one, *others = (size + self.overhead_bytes + (-round(size) % self.page_bytes if self.page_bytes else 0) for size in sizes)
        decoded, augmented = (other / one for other in others)
        return DatasetSizes(dataset.num_samples, one, decoded, augmented, dataset.keeps_decoded, dataset.keeps_augmented)


@dataclass(frozen=True, slots=True, order=True)
class Split:
    """Division of a cache between the forms, x_E, x_D, x_A, in percent of the cache's bytes. The text form is 58-42-0."""

    encoded: int
    decoded: int
    augmented: int

    def __post_init__(self) -> None:
        if min(self.encoded, self.decoded, self.augmented) < 0 or self.encoded + self.decoded + self.augmented != 100:
            raise InvalidArgumentError(
                f"{self} is not a split of a cache: write whole percents from 0 on that add up to 100, as 58-42-0"
            )

    def __str__(self) -> str:
        return f"{self.encoded}-{self.decoded}-{self.augmented}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text form. Raises InvalidArgumentError.

        >>> Split.parse("58-42-0")
        Split(encoded=58, decoded=42, augmented=0)
        """
        parts = text.split("-")
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) <= 3 for part in parts):
            raise InvalidArgumentError(
                f"{text!r} is not a split of a cache: write percents as encoded-decoded-augmented, as 58-42-0"
            )
        return cls(*map(int, parts))


SPLITS: Final[npt.NDArray[np.int64]] = np.array(
    [(100 - decoded - augmented, decoded, augmented) for augmented in range(101) for decoded in range(101 - augmented)], np.int64
)
"""(5151, 3), all splits in percent: encoded, decoded, augmented. Sorted by the augmented percents, ascending, then by the encoded percents,
descending."""
SPLITS.setflags(write=False)
PURE: Final = (Split(100, 0, 0), Split(0, 100, 0), Split(0, 0, 100))
"""The splits that give the whole cache to one form."""


class AccessRates(NamedTuple):
    """Samples/s of each way, if all samples took this way."""

    augmented: float
    decoded: float
    encoded: float
    storage: float


def ring_bytes_per_sample(model_bytes: float, num_members: int, samples_per_batch: float) -> float:
    """Return C_nw or C_PCIe if gradients are reduced in a ring: 2 (n - 1) / n × size of the model / samples of a batch.

    Args: num_members: n: the number of nodes for C_nw, of accelerators in one node for C_PCIe. samples_per_batch: size of the batch of one member.

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
    """Limits of reading augmented samples from the cache. Equation 1."""
    augmented_bytes = workload.dataset.augmented_bytes
    return _from_cache(workload.nodes, cache, augmented_bytes) | _to_accelerator(workload)


def decoded_limits(workload: Workload, cache: CacheStore) -> Limits:
    """Limits of reading decoded samples from the cache and augmenting them. Equation 3."""
    nodes = workload.nodes
    augment = {"augmenting": nodes.num_nodes * nodes.augment_samples_per_s}
    return _from_cache(nodes, cache, workload.dataset.decoded_bytes) | augment | _to_accelerator(workload)


def encoded_limits(workload: Workload, cache: CacheStore) -> Limits:
    """Limits of reading encoded samples from the cache, decoding and augmenting them. Equation 5."""
    return _from_cache(workload.nodes, cache, workload.dataset.encoded_bytes) | _decoding(workload) | _to_accelerator(workload)


def storage_limits(workload: Workload, cache: CacheStore | None) -> Limits:
    """Limits of reading samples from storage, decoding and augmenting them. Equation 7. With a cache, the limits of encoded samples apply too,
    because a training asks the cache first. Args: cache: None if there is no cache."""
    encoded_bytes = workload.dataset.encoded_bytes
    limits = {"storage": workload.storage_bytes_per_s / encoded_bytes}
    if workload.storage_crosses_network:
        limits |= _network(workload.nodes, encoded_bytes)
    return limits | (_decoding(workload) | _to_accelerator(workload) if cache is None else encoded_limits(workload, cache))


def access_rates(workload: Workload, cache: CacheStore, num_trainings: int | None = None) -> AccessRates:
    """Return, for each way, the smallest of its limits. Equations 1, 3, 5 and 7.

    Args:
        num_trainings: number of trainings that share the cache. An augmented value serves each training once. The training that prepares the value
            gets it at the rate of storage. None: the preparation of augmented values does not count, as in the paper.
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
    """Return the number of samples that take each way. Equations 2, 4, 6 and 8. Samples take the augmented way as far as the cache has room, the
    remaining samples the decoded way, then the encoded way, then the way from storage.

    Args: parts: (k, 3), x_E, x_D, x_A of k splits, each in 0 … 1. Returns: (k, 4), N_A, N_D, N_E, N_storage, which add up to N_total.
    """
    left = np.full(len(parts), float(dataset.num_samples))
    room, samples = parts[:, ::-1] * dataset.fitting(size_bytes), np.empty((len(parts), 4))
    # From the fastest way to the slowest: each way takes as many of the remaining samples as it has room for.
    for way in range(3):
        samples[:, way] = np.minimum(left, room[:, way])
        left = left - samples[:, way]
    samples[:, 3] = left
    return samples


def values_in_step(num_samples: int, num_trainings: int, batch_size: int, num_workers: int = 1) -> int:
    """Return the number of augmented values that must fit into the cache, so that each training in step finds all values that other trainings made.
    Args: num_workers: workers of each training.

    >>> values_in_step(1_000_000, 4, 64), values_in_step(3_000, 4, 64), values_in_step(100, 4, 64)
    (50000, 768, 100)
    """
    batches = num_trainings * (COORDINATED_BATCHES + max(1, num_workers))
    return min(num_samples, max(int(COORDINATED_SHARE * num_samples), batches * batch_size))


def coordinated_samples_by_way(
    dataset: DatasetSizes, size_bytes: float, parts: FloatArray, num_trainings: int, num_values: int
) -> FloatArray:
    """Count samples like `samples_by_way`, for trainings in step that prepare augmented samples for each other (sampler `coordinated`); not in the
    paper.

    Each of J trainings gets (J - 1) / J of its samples from other trainings, if the cache has room for `num_values` values (see `values_in_step`).
    With less room, this fraction falls in proportion. Decoded and encoded samples stay in the cache, and serve a fixed fraction of the remaining
    samples.
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
    """Return the samples/s over all ways: the mean of the rates, weighted by samples. Equation 9.

    Args: samples: (k, 4), of `samples_by_way`. Returns: (k,).
    """
    return np.asarray(samples @ np.array(rates) / samples.sum(axis=1))


def throughput_by_times(samples: FloatArray, rates: AccessRates) -> FloatArray:
    """Return the samples/s if the same workers process the samples of all ways one after the other: the reciprocal of the mean time. Not in the
    paper.

    Args: samples: (k, 4), of `samples_by_way`. Returns: (k,).
    """
    return np.asarray(samples.sum(axis=1) / (samples @ (1 / np.array(rates))))


@dataclass(frozen=True, slots=True, eq=False)
class SplitPredictions:
    """Predictions for every split of a cache."""

    samples_per_s: FloatArray
    """(5151,), in the order of SPLITS."""
    without_cache_samples_per_s: float
    """Throughput without a cache. With a slow cache, the throughput can be lower than this."""

    @property
    def best_samples_per_s(self) -> float:
        """The largest throughput."""
        return float(self.samples_per_s.max())

    @property
    def best(self) -> Split:
        """The best split. Among equally good splits (TIE), the smallest augmented part is chosen, because augmented samples are dropped after use.
        With this augmented part, a split without encoded samples is chosen if it is equally good, because it leaves free room. Otherwise the largest
        encoded part is chosen, because more samples fit in encoded form."""
        # SPLITS begins with the fewest augmented and the most encoded percents, and `argmax` finds the first split that is good enough.
        encoded, decoded, augmented = SPLITS[int(np.argmax(self._near_best(TIE)))].tolist()
        spare = Split(0, encoded + decoded, augmented)
        return spare if self.of(spare) >= (1 - TIE) * self.best_samples_per_s else Split(encoded, decoded, augmented)

    def of(self, split: Split) -> float:
        """Predicted samples/s of one split."""
        # Position in SPLITS: for each smaller percentage `a` of augmented samples, 101 - a splits come first.
        augmented = split.augmented
        return float(self.samples_per_s[augmented * (203 - augmented) // 2 + split.decoded])

    def regret(self, split: Split) -> float:
        """Relative loss of throughput against the best split, 0 … 1."""
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
    """Predict the throughput of all splits in steps of 1 %.

    Args: num_trainings: see `access_rates`. num_values_in_step: result of `values_in_step`; 0: the trainings are not in step. by_times: use
    `throughput_by_times`, which is closer to measurements (`python -m benchmark.cache predict`), instead of equation 9.
    """
    without = min(storage_limits(workload, None).values())
    mean, taken = throughput_by_times if by_times else throughput, cache.taken(workload.dataset)
    if num_values_in_step:
        samples = coordinated_samples_by_way(taken, cache.size_bytes, SPLITS / 100, num_trainings or 1, num_values_in_step)
        return SplitPredictions(mean(samples, access_rates(workload, cache)), without)
    samples = samples_by_way(taken, cache.size_bytes, SPLITS / 100)
    return SplitPredictions(mean(samples, access_rates(workload, cache, num_trainings)), without)


def _from_cache(nodes: TrainingNodes, cache: CacheStore, sample_bytes: float) -> Limits:
    """Limit of reading from the cache: B_cache, and also B_NIC if the cache is on another machine."""
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
    """Raise InvalidArgumentError unless all numbers are greater than 0. Args: finite: fields that must be finite. least: field → smallest allowed
    value."""
    for name in (field.name for field in dataclasses.fields(record)):
        value = getattr(record, name)
        if isinstance(value, bool) or dataclasses.is_dataclass(value):
            continue
        bound = (least or {}).get(name)
        if not (value > 0 if bound is None else value >= bound) or (name in finite and value == math.inf):
            allowed = "greater than 0" if bound is None else f"at least {bound:g}"
            raise InvalidArgumentError(f"{name} is {value!r}; it must be {allowed}{' and finite' if name in finite else ''}")
