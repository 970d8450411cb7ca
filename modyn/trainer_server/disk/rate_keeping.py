"""Stores the preparation times that a training measured, for the cache plans of later trainings. Imports no torch."""

from __future__ import annotations

from typing import Final

from modyn.cache.plan.measured_rates import MeasuredRates, rates_path, read_rates, write_rates
from modyn.cache.plan.profile import CacheProfile, profile_of, profile_path
from modyn.cache.served_counts import ServedCounts
from modyn.config.system import SystemConfig
from modyn.dataset.config import DataConfig
from modyn.dataset.preparation_clock import PreparationTimes
from modyn.errors import CorruptStateError, ModynError
from modyn.rpc.logs import get_logger

LEAST_SAMPLES: Final = 256
"""Smallest number of samples for which a time is stored. The first samples of a process take longer, and would distort a mean of few samples."""


def seconds_saved(config: SystemConfig, data: DataConfig, dataset_identity: str, counts: ServedCounts) -> float | None:
    """Estimate from this machine's profile how many seconds a cache saved a training; None if this registration of the dataset has no profile."""
    try:
        profile = _profile(config, data, dataset_identity)
    except ModynError:
        return None
    return None if profile is None else counts.seconds_saved(profile)


def keep_rates(config: SystemConfig, data: DataConfig, dataset_identity: str, times: PreparationTimes) -> None:
    """Store the times that a training measured, if the dataset has a profile to compare them with. A failure is only logged."""
    try:
        if (profile := _profile(config, data, dataset_identity)) is None:
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


def _profile(config: SystemConfig, data: DataConfig, dataset_identity: str) -> CacheProfile | None:
    return profile_of(config.state_dir, data.model_dump(mode="json"), dataset_identity)


def rates_of(times: PreparationTimes, profile_measured_at: float) -> MeasuredRates:
    """Return the rates of one worker for each step with enough samples. `times` has the seconds and samples of all workers."""
    has_read = times.num_read >= LEAST_SAMPLES and times.read_bytes > 0
    return MeasuredRates(
        profile_measured_at,
        encoded_bytes=times.read_bytes / times.num_read if has_read else None,
        read_bytes_per_s=times.read_bytes / times.read_s if has_read and times.read_s > 0 else None,
        decode_s=times.decode_s / times.num_decoded if times.num_decoded >= LEAST_SAMPLES else None,
        augment_s=times.augment_s / times.num_augmented if times.num_augmented >= LEAST_SAMPLES else None,
    )
