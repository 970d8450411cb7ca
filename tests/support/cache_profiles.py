"""A profile as `modyn cache profile` writes it: photos of 100 KB in slow storage, which a cache helps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modyn.cache.plan.measuring import StoreRates
from modyn.cache.plan.profile import CacheProfile
from modyn.cache.plan.tier_choice import SampleOrder
from modyn.config.system import SystemConfig
from modyn.dataset.cached.cache_source import CacheSource
from modyn.dataset.cached.pipeline_cache import cache_settings, training_cache
from modyn.dataset.config import DataConfig
from modyn.storage.client import DatasetInfo

PROFILE: Final = CacheProfile(
    dataset="photos",
    dataset_identity="one",
    data_digest="0123456789abcdef" * 4,
    measured_at=1000.5,
    seconds=58.0,
    machine="2 × CPU, 8 GiB, Linux",
    memory_bytes=8 * 2**30,
    training="ResNet18 on cpu, batches of 64",
    num_workers=2,
    num_samples=123_000,
    num_measured=123,
    encoded_bytes=100_000.0,
    decoded_bytes=150_000.0,
    augmented_bytes=600_000.0,
    storage_bytes_per_s=25e6,
    decode_and_augment_samples_per_s=500.0,
    augment_samples_per_s=2000.0,
    worker_read_bytes_per_s=15e6,
    decode_s=0.003,
    augment_s=0.001,
    accelerator_samples_per_s=float("inf"),
    stores={"memory": StoreRates(2e9, 4e9)},
    notes=("It was measured by hand.",),
)


def training_cache_of(config: SystemConfig, pipeline: Mapping[str, Any], info: DatasetInfo) -> CacheSource | None:
    """Choose the cache of a training, as its worker does."""
    settings, training = cache_settings(config, pipeline), pipeline.get("training") or {}
    order = SampleOrder(bool(training.get("shuffle")), training.get("seed") is not None)
    return training_cache(config, settings, DataConfig.model_validate(pipeline["data"]), info, order)
