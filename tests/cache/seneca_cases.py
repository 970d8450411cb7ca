"""The platforms and datasets of the paper, as far as its text prints their parameters (tables 5 and 6, section 7), and the table made of them.

Bytes are binary (the footprints of table 6 are samples × size only so), bits per second decimal. The inflation is printed for ImageNet-1K alone;
tensors of the other datasets are taken to be as large. How gradients travel is not printed: no bytes are counted for them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from modyn.cache.plan.performance_model import CacheStore, DatasetSizes, Split, TrainingNodes, Workload, predict, storage_limits
from modyn.cache.plan.split_plan import plan_cache

KB: Final = 1024
GBIT: Final = 1e9 / 8
DECODED_BYTES: Final = 5.12 * 114 * KB

PLATFORMS: Final = {
    "in-house": (TrainingNodes(2132, 4050, 4550, 10 * GBIT, 32 * KB**3), 500 * KB**2, CacheStore(115 * KB**3, 10 * GBIT)),
    "AWS": (TrainingNodes(3432, 6520, 9989, 10 * GBIT, 32 * KB**3), 256 * KB**2, CacheStore(400 * KB**3, 10 * GBIT)),
    "Azure": (TrainingNodes(9783, 12930, 14301, 80 * GBIT, 64 * KB**3), 250 * KB**2, CacheStore(400 * KB**3, 30 * GBIT)),
}
"""One node, B_storage in bytes/s, and the cache of section 7."""
SERVERS: Final = (("in-house", 1), ("in-house", 2), ("AWS", 1), ("Azure", 1), ("Azure", 2))
FOOTPRINTS: Final = {"ImageNet-1K": (142, 114.62), "OpenImages": (517, 315.84), "ImageNet-22K": (1400, 91.39)}
"""Size of the dataset in GB, and of a sample in KB."""
PRINTED: Final = Split(58, 42, 0)
"""The split of ImageNet-1K on one in-house server."""


def case(platform: str, num_nodes: int, dataset: str, kb: int = KB, gbit: float = GBIT) -> tuple[Workload, CacheStore]:
    """One cell of table 6."""
    node, storage, cache = PLATFORMS[platform]
    nodes = replace(
        node,
        num_nodes=num_nodes,
        network_bytes_per_s=node.network_bytes_per_s * gbit / GBIT,
        pcie_bytes_per_s=node.pcie_bytes_per_s * (kb / KB) ** 3,
    )
    footprint_gb, encoded_kb = FOOTPRINTS[dataset]
    inflation = DECODED_BYTES / KB / encoded_kb
    sizes = DatasetSizes(round(footprint_gb * kb**2 / encoded_kb), encoded_kb * kb, inflation, inflation)
    store = CacheStore(round(cache.size_bytes * (kb / KB) ** 3), cache.bytes_per_s * gbit / GBIT)
    return Workload(nodes, sizes, storage * (kb / KB) ** 2), store


def row(platform: str, num_nodes: int, dataset: str) -> str:
    """One line of the table in benchmark/cache/paper_cases.md."""
    workload, cache = case(platform, num_nodes, dataset)
    found = predict(workload, cache)
    limits = storage_limits(workload, None)
    pure = [f"{found.of(split):,.0f}" for split in (Split(100, 0, 0), Split(0, 100, 0))]
    plan = plan_cache(workload, {"cache": cache})
    cells = [
        f"{num_nodes} × {platform}",
        dataset,
        f"{found.without_cache_samples_per_s:,.0f}",
        min(limits, key=lambda name: limits[name]),
    ]
    cells += [*pure, str(found.best), str(plan.split) if plan.split else "no cache"]
    return f"| {' | '.join(cells)} |"


def table() -> list[str]:
    """All lines of the table in benchmark/cache/paper_cases.md."""
    return [row(platform, num_nodes, dataset) for platform, num_nodes in SERVERS for dataset in FOOTPRINTS]
