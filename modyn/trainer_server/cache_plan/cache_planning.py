"""Profiles and plans of a cache for a pipeline, for the command line and `modyn.Client`. Imports torch only for a measurement."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Final

from modyn.cache.plan.measuring import MeasuredPart
from modyn.cache.plan.performance_model import Split, SplitPredictions
from modyn.cache.plan.profile import CacheProfile, profile_path, read_profile, write_profile
from modyn.cache.plan.split_plan import CachePlan, ComparedSplit, check_cache_size, compare_splits
from modyn.cache.plan.tier_choice import plan_tiers, shares_augmented
from modyn.config.cache import parse_size
from modyn.config.system import SystemConfig
from modyn.dataset.cached.pipeline_cache import cache_needs, check_machine
from modyn.errors import ConflictError, InvalidArgumentError, NotFoundError, UnavailableError
from modyn.storage.client import DatasetInfo, StorageClient
from modyn.trainer_server.cache_plan.profiled_pipeline import ProfiledPipeline, load_profiled

__all__ = ["CacheForecast", "ProfiledPipeline", "check_dataset", "load_profiled", "measure_cache", "read_forecast"]


USUAL_SIZE: Final = "2GB"
"""Size of a cache if no option names a size."""
_FOR_SHARING: Final = (
    "that takes training.shuffle without training.seed, or `sampler: coordinated`, and code for each sample whose source is known"
)


@dataclass(frozen=True, slots=True, eq=False)
class CacheForecast:
    """Prediction for a pipeline with a cache of one size."""

    profile: CacheProfile
    """Profile that the prediction is computed from."""
    size_bytes: int
    jobs: int
    """Number of trainings that share the cache."""
    plan: CachePlan
    """The store and the split that a training with `split: auto` would use, or the reason why no cache saves time. The plan predicts each usable
    store."""
    store: str
    """The store of the plan, or the best store if no cache saves time. `splits` compares the splits of this store."""
    in_use: Split | None
    """The split with which other splits are compared; None if the user names no split."""
    splits: tuple[ComparedSplit, ...]
    """The best split, the splits that keep only one form of samples, `in_use` unless it is None, and the prediction without a cache."""
    predictions: SplitPredictions
    """Predictions for all splits of `store`."""
    notes: tuple[str, ...]
    """Sentences about the measurements that the prediction uses, and about how the pipeline differs from the measured pipeline."""


def measure_cache(
    config: SystemConfig,
    pipeline: ProfiledPipeline,
    info: DatasetInfo,
    seconds: float,
    workers: int | None,
    progress: Callable[[MeasuredPart], object],
) -> CacheProfile:
    """Measure on this machine the parameters from which a cache is planned, and store them for `read_forecast` and trainings. Args, errors: see
    `measure_profile`.
    """
    started = perf_counter()  # Importing PyTorch counts towards the time limit.
    from modyn.dataset.connections import DatasetSource
    from modyn.trainer_server.cache_plan.cache_profile import measure_profile
    from modyn.trainer_server.cache_plan.store_rates import known_stores

    measured = measure_profile(
        DatasetSource(config, info.name, pipeline.training.parallel_prefetch_requests),
        pipeline,
        info,
        seconds=max(1.0, seconds - (perf_counter() - started)),
        num_workers=workers,
        torch_threads=config.trainer_server.num_threads,
        stores=known_stores(config),
        progress=progress,
    )
    write_profile(profile_path(config.state_dir, info.name, measured.data_digest), measured)
    return measured


def read_forecast(
    config: SystemConfig, pipeline: ProfiledPipeline, size: int | str | None, jobs: int | None, split: str | None
) -> CacheForecast:
    """Predict the effect of a cache from the profile that `measure_cache` stored. Trainings use the same rule.

    Args: size: bytes, or a text such as 2GB; None for the size in the pipeline or the system file, or else USUAL_SIZE. split: the split in use, such
    as 58-42-0; None for the split in the pipeline or the system file.

    Raises: InvalidArgumentError: size, jobs or split is wrong. ConfigError: this machine cannot have such a cache. NotFoundError, CorruptStateError:
    the dataset has no valid profile, and must be measured first.
    """
    settings = config.cache.overridden(pipeline.cache)
    num_bytes = _bytes(size if size is not None else settings.size or USUAL_SIZE)
    jobs, in_use = settings.jobs if jobs is None else jobs, settings.split if split is None else split
    today = None if in_use == "auto" else Split.parse(in_use)
    if jobs < 1:
        raise InvalidArgumentError(f"{jobs} trainings cannot share a cache: there is at least one")
    measured = read_profile(profile_path(config.state_dir, pipeline.data.dataset_id, pipeline.data_digest))
    check_cache_size(num_bytes, measured.memory_bytes, measured.encoded_bytes)
    if not measured.stores:
        raise NotFoundError(
            f"no store could be measured for dataset '{measured.dataset}': {' '.join(measured.notes)} Correct that, and run `modyn cache "
            "profile PIPELINE.yaml` again"
        )
    # With `auto`, the plan has the best split, which the forecast compares with the split in use.
    settings = settings.model_copy(update={"size": num_bytes, "jobs": jobs, "split": "auto"})
    check_machine(config, settings)
    needs = cache_needs(config, pipeline.data, pipeline.training.order, measured, is_remote=False)
    plan = plan_tiers(settings, needs, measured)
    if not plan.predictions:
        raise InvalidArgumentError(plan.reason)
    store = plan.cache or next(iter(plan.predictions))
    predictions = plan.predictions[store]
    splits = tuple(compare_splits(predictions, today))
    notes = tuple(forecast_notes(measured, pipeline, jobs, shares=shares_augmented(settings, needs)))
    return CacheForecast(measured, num_bytes, jobs, plan, store, today, splits, predictions, notes)


def check_dataset(forecast: CacheForecast, storage: StorageClient) -> CacheForecast:
    """Check that the dataset was not registered again since the measurement. Return the forecast, with a note if storage does not answer.

    Raises: NotFoundError: the dataset does not exist any more. ConflictError: the dataset was registered again.
    """
    measured = forecast.profile
    try:
        identity = storage.dataset(measured.dataset).identity
    except UnavailableError as error:
        note = f"Whether dataset {measured.dataset} is still the one that was measured is not known: {error.message}."
        return replace(forecast, notes=(*forecast.notes, note))
    if identity != measured.dataset_identity:
        raise ConflictError(
            f"dataset '{measured.dataset}' was registered again since it was measured; measure it again by `modyn cache profile PIPELINE.yaml`"
        )
    return forecast


SMALL_BYTES: Final = 4096
"""Size in bytes below which the fixed cost of a sample exceeds the cost of its bytes."""


def forecast_notes(measured: CacheProfile, pipeline: ProfiledPipeline, jobs: int, *, shares: bool) -> list[str]:
    """Describe the basis of a prediction: the time of the measurement, and how the pipeline or the number of jobs differs from the measurement.
    Args: shares: whether the trainings prepare augmented samples for each other."""
    measured_at = dt.datetime.fromtimestamp(measured.measured_at).astimezone()
    notes = [f"Measured {measured_at:%Y-%m-%d %H:%M:%S} on {measured.machine}; stores: {', '.join(measured.stores)}."]
    notes += measured.too_little
    if measured.encoded_bytes < SMALL_BYTES:
        notes.append(
            f"Samples have {measured.encoded_bytes:,.0f} bytes: the cost that does not depend on size (look-up, opening, checks) is most of its "
            "time, was measured with decoded ones, and counts for other forms by their bytes; so a prediction may be wrong by more than a quarter."
        )
    if measured.training != pipeline.trained:
        notes.append(
            f"The accelerator was measured with {measured.training}, and this is {pipeline.trained}: `modyn cache profile` measures again."
        )
    if jobs > 1:
        how = "and prepare augmented samples" if shares else "but prepare no augmented samples"
        notes.append(
            f"Throughput is that of all {jobs} trainings together, which share the rates of the machine, {how} for each other"
            + ("." if shares else f": {_FOR_SHARING}.")
        )
    workers = jobs * pipeline.training.dataloader_workers
    if workers > measured.num_workers:
        notes.append(
            f"{trainings(jobs)} {'has' if jobs == 1 else 'have'} {workers} workers, and rates are those of {measured.num_workers}: "
            f"`modyn cache profile --workers {workers}` measures what they do together."
        )
    return notes


def trainings(jobs: int) -> str:
    """Return a number of trainings as text, such as `1 training`."""
    return "1 training" if jobs == 1 else f"{jobs:,} trainings"


def _bytes(size: int | str) -> int:
    """Parse the size of a cache. Raises InvalidArgumentError if `size` is not a size of at least 1 byte."""
    try:
        found = parse_size(size)
    except ValueError as error:
        raise InvalidArgumentError(f"size: {error}") from None
    if found < 1:
        raise InvalidArgumentError(f"size: a cache of {size!r} holds nothing; give more, for example 2GB")
    return found
