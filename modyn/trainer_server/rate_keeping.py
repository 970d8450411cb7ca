"""What a training measured of preparing its samples, kept for the next one that plans a cache. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from modyn.cache.measured_rates import MeasuredRates, rates_path, read_rates, write_rates
from modyn.cache.profile import CacheProfile, profile_of, profile_path
from modyn.cache.served_counts import ServedCounts
from modyn.config.system import SystemConfig
from modyn.dataset.config import DataConfig
from modyn.dataset.preparation_clock import PreparationTimes
from modyn.errors import CorruptStateError, ModynError
from modyn.rpc.logs import get_logger

LEAST_SAMPLES: Final = 256
"""Of fewer, times say nothing: the first samples of a process take longer."""


def seconds_saved(config: SystemConfig, pipeline: Mapping[str, Any], dataset_identity: str, counts: ServedCounts) -> float | None:
    """Estimate what a cache has saved a training, by the profile of this machine; None: there is none for this registration of the dataset."""
    try:
        profile = _profile(config, pipeline, dataset_identity)
    except ModynError:
        return None
    return None if profile is None else counts.seconds_saved(profile)


def keep_rates(config: SystemConfig, pipeline: Mapping[str, Any], dataset_identity: str, times: PreparationTimes) -> None:
    """Keep what a training measured, where there is a profile to compare it with. What cannot be kept is logged: no training fails by it."""
    try:
        if (profile := _profile(config, pipeline, dataset_identity)) is None:
            return
        path = rates_path(profile_path(config.state_dir, profile.dataset, profile.data_digest))
        rates = rates_of(times, profile.measured_at)
        try:
            earlier = read_rates(path)
        except CorruptStateError:
            earlier = None
        if rates.after(earlier) != earlier:
            write_rates(path, rates.after(earlier))
    except ModynError as error:
        get_logger("training").warning("cache_rates_not_kept", reason=error.message)


def _profile(config: SystemConfig, pipeline: Mapping[str, Any], dataset_identity: str) -> CacheProfile | None:
    data = DataConfig.model_validate(pipeline["data"])
    return profile_of(config.state_dir, data.model_dump(mode="json"), dataset_identity)


def rates_of(times: PreparationTimes, profile_measured_at: float) -> MeasuredRates:
    """The rates of one worker, of what it did often enough. Seconds of all workers of the training are in `times`, and so are their samples."""
    has_read = times.num_read >= LEAST_SAMPLES and times.read_bytes > 0
    return MeasuredRates(
        profile_measured_at,
        encoded_bytes=times.read_bytes / times.num_read if has_read else None,
        read_bytes_per_s=times.read_bytes / times.read_s if has_read and times.read_s > 0 else None,
        decode_s=times.decode_s / times.num_decoded if times.num_decoded >= LEAST_SAMPLES else None,
        augment_s=times.augment_s / times.num_augmented if times.num_augmented >= LEAST_SAMPLES else None,
    )
