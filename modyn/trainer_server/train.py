"""The task of a training worker: fetch the parent model, build, fit, store. Imports torch: for workers only."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, Final, Self

import torch

from modyn.cache.served_counts import ServedCounts
from modyn.config.base import load_section
from modyn.config.cache import CacheConfig
from modyn.config.online import ONLINE
from modyn.config.pipeline import ModelReference
from modyn.config.system import SystemConfig
from modyn.dataset.cached.pipeline_cache import cache_settings, training_cache
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetSource
from modyn.dataset.session_connections import SessionConnections, SessionSource
from modyn.errors import ConfigError, InvalidArgumentError
from modyn.model_storage.client import ModelHeader, StoredModel, StoredModelInfo
from modyn.models.weights import save_weights
from modyn.rpc.logs import bind, configure_logs, get_logger
from modyn.rpc.retry import Retrier, RetryPolicy
from modyn.storage.client import StorageClient
from modyn.trainer_server.disk.files import (
    checkpoint_path,
    find_finished,
    finished_path,
    keep_finished,
    optimizers_path,
    remove_outlived,
)
from modyn.trainer_server.disk.rate_keeping import keep_rates, seconds_saved
from modyn.trainer_server.ends import end_diverged, end_tested, end_unlearned, end_without_model, nothing_trained, sample_results
from modyn.trainer_server.fitting import build, fit
from modyn.trainer_server.learning import NothingLearnedError, check_learned, count_ignored_labels, learning_warnings
from modyn.trainer_server.loop.checkpoint import check_checkpoint_folder, load_checkpoint
from modyn.trainer_server.loop.hooks import DivergedError, Losses, check_weights
from modyn.trainer_server.loop.inputs import TrainingContext, TrainingInputs
from modyn.trainer_server.loop.loop import Training
from modyn.trainer_server.loop.optimizer_states import keep_optimizers
from modyn.trainer_server.loop.seeding import derived_seed, seed_everything
from modyn.trainer_server.loop.training_progress import TrainingProgress
from modyn.trainer_server.loop.validation_pass import Validation
from modyn.trainer_server.online.stream_preprocessing import statistics_of
from modyn.trainer_server.parent_model import fetch_parent
from modyn.trainer_server.request.config import TrainingConfig
from modyn.trainer_server.request.records import StageProgress, TrainingJob, TrainingRequest
from modyn.trainer_server.request.step_config import config_of_steps, section_of_steps
from modyn.trainer_server.result import BadSampleNote, CacheResult, TrainingCounts, TrainingLosses, TrainingResult
from modyn.trainer_server.scoring.chosen_scores import ChosenScores
from modyn.trainer_server.scoring.downsampling_record import DownsamplingRecord
from modyn.trainer_server.scoring.irreducible import TooLittleHeldOutError, prepare_downsampling
from modyn.trainer_server.scoring.sample_scores import SampleScores, send_scores
from modyn.workers import JobConnection
from modyn.workers.devices import missing_device

_WEIGHTS: Final = 1
"""Purpose of the seed of initial weights (see `derived_seed`). Other modules define other purposes."""


@dataclass(frozen=True, slots=True)
class TrainingSections:
    """The sections of a pipeline that the worker of a training parses once."""

    model: ModelReference
    training: TrainingConfig
    data: DataConfig

    @classmethod
    def load(cls, pipeline: Mapping[str, Any]) -> Self:
        """Parse the sections. Raises: ConfigError."""
        return cls(
            load_section(ModelReference, pipeline["model"], "model"),
            load_section(TrainingConfig, pipeline["training"], "training"),
            load_section(DataConfig, pipeline["data"], "data"),
        )


def train(job: TrainingJob, connection: JobConnection) -> StoredModelInfo | TrainingResult:
    """Run the task of a worker process: connect to the services and train for `job`. Args: connection: connection to the trainer server."""
    config, request = job.config, job.request
    connection.send(StageProgress())  # The first message changes the status from queued to running.
    configure_logs("trainer_worker", config.trainer_server.log_level)
    if request.pipeline.get(ONLINE) is not None:
        lower_priority(config.trainer_server.online_niceness)
    with bind(run_id=request.run_id, trigger_id=request.trigger_id):
        sections = TrainingSections.load(request.pipeline)
        source = dataset_source(config, cache_settings(config, request.pipeline), sections)
        connections = SessionConnections.of(connection.memory, config)
        folder, kept, models = config.service_dir("trainer_server"), connection.models, connections.models
        context = TrainingContext(
            trigger_set=connections.selector.trigger_set,
            get_model=partial(models.get, kept=kept),
            get_optimizers=partial(models.get_optimizers, kept=kept),
            put_model=lambda header, weights, optimizers: models.put(header, weights, kept, optimizers),
            connect=SessionSource(connections, source),
            cache=source.cache,
            folder=folder,
            put_feedback=connections.selector.put_feedback,
            keep_times=partial(keep_rates, config, sections.data),
            seconds_saved=partial(seconds_saved, config, sections.data),
        )
        return run_training(request, sections, context, connection)


def lower_priority(niceness: int) -> None:
    """Lower the priority of this process for its lifetime, because the computations of other processes are more urgent."""
    os.nice(max(0, niceness - os.nice(0)))


def dataset_source(config: SystemConfig, settings: CacheConfig, sections: TrainingSections) -> DatasetSource:
    """Return the dataset of a training, with the cache. Args: settings: settings of the cache."""
    name, cache = sections.data.dataset_id, None
    if settings.size is not None:
        with StorageClient(config.endpoint("storage")) as storage:
            cache = training_cache(config, settings, sections.data, storage.dataset(name), sections.training.order)
    return DatasetSource(config, name, sections.training.parallel_prefetch_requests, cache)


def run_training(
    request: TrainingRequest, sections: TrainingSections, context: TrainingContext, connection: JobConnection
) -> StoredModelInfo | TrainingResult:
    """Train for `request` and store the model. If a checkpoint of the same training exists, resume from this checkpoint.

    Raises: InvalidArgumentError: the trigger set is empty. ConfigError, UserCodeError, DataError, TrainingError: the training cannot run.
    """
    config = sections.training
    if request.online:
        config = config_of_steps(config, section_of_steps(request))
    # `cuda` means any GPU; the service has assigned one to this worker.
    if config.device == "cuda":
        config = config.model_copy(update={"device": connection.device})
    if config.checkpointing.activated:
        check_checkpoint_folder(checkpoint_path(context.folder, request).parent)
    # A thread fetches the parent's weights while this thread reads the trigger set.
    with fetch_parent(request, config, context) as fetched_parent:
        trigger_set = context.trigger_set(request.run_id, request.trigger_id)
        if trigger_set.num_keys == 0:
            raise InvalidArgumentError(
                "the trigger set is empty, there is nothing to train on: see that the selection strategy leaves samples, and that the "
                "trigger does not fire without new ones"
            )
        inputs = TrainingInputs(request, sections.model, config, sections.data, context, trigger_set)
        # An earlier attempt may have finished this training, but may have been killed before its model was stored.
        if (ended := _ended_before(inputs, fetched_parent)) is not None:
            return ended
        path = checkpoint_path(context.folder, request)
        checkpoint = load_checkpoint(path, inputs.identity()) if config.checkpointing.activated else None
        # Without a seed, a random seed is drawn and stored in the checkpoint, so that a resumed training has the same order of samples.
        seed = checkpoint.seed if checkpoint else inputs.seed if inputs.seed is not None else secrets.randbits(62)
        configure_torch(config, deterministic=inputs.seed is not None)
        # Building the model below draws its initial weights.
        seed_everything(derived_seed(seed, request.trigger_id, _WEIGHTS))
        parent = fetched_parent()
        validation = Validation(inputs, connection) if inputs.held_out else None
        if config.validation and validation is None:
            reason = f"{config.validation.ratio} % of a partition is less than one sample: the training loss counts in its place"
            get_logger("training").warning("nothing_held_out", reason=reason)
        training = build(inputs, parent, seed, connection, validation)
    try:
        with validation or nullcontext():
            if inputs.downsampling is not None:
                prepare_downsampling(inputs, training, connection)
            num_alone = fit(inputs, training, seed, checkpoint, connection)
        check_weights(training.components.model)
        check_learned(training, config)
    except TooLittleHeldOutError as error:
        return end_without_model(inputs, error.message)
    except DivergedError as error:
        return end_diverged(inputs, error, training, connection)
    except NothingLearnedError as error:
        return end_unlearned(inputs, error, training)
    if training.tests_only:
        return end_tested(inputs, training)
    if not training.progress.steps:
        which = "one sample is left, BatchNorm needs two: all other" if num_alone else "all"
        reason = f"{which} samples of the trigger set were deleted meanwhile, or left out by data.on_bad_sample"
        return end_without_model(inputs, reason, TrainingResult(bad_samples=_bad_samples(training.progress)))
    return put(inputs, finish(inputs, training), parent)


def _ended_before(
    inputs: TrainingInputs, fetched_parent: Callable[[], StoredModel | None]
) -> StoredModelInfo | TrainingResult | None:
    """Return the outcome of a training that an earlier attempt finished, or that has no batch; None if the training must run."""
    if not inputs.plan.num_batches:
        return nothing_trained(inputs, inputs.no_batch())
    request, folder = inputs.request, inputs.context.folder
    optimizers = optimizers_path(folder, request.run_id, request.trigger_id)
    found = find_finished(finished_path(folder, request), inputs.identity(), optimizers)
    if found is None:
        return None
    result = TrainingResult.from_mapping(found)
    if result.nothing_trained:
        return result
    get_logger("training").info("finished_before", reason="only the put to model storage is repeated")
    return put(inputs, result, fetched_parent())


def finish(inputs: TrainingInputs, training: Training) -> TrainingResult:
    """Write weights and result of a training to the trainer's folder. If model storage cannot be reached, the next attempt finds both files there.

    The optimizers' states are written first, so that the states exist when the model exists. A failure to write the states is logged and noted in the
    result.

    Returns: the result. Raises: TrainingError: the weights cannot be written.
    """
    result, started = _result(inputs, training), perf_counter()
    request, folder = inputs.request, inputs.context.folder
    if inputs.keeps_optimizers:
        result = replace(result, optimizer_state_not_kept=keep_optimizers(inputs, training.components))
    save = partial(save_weights, training.components.model, statistics=statistics_of(training))
    optimizers = optimizers_path(folder, request.run_id, request.trigger_id)
    kept = optimizers if optimizers.exists() else None
    keep_finished(finished_path(folder, request), save, result.to_mapping(), inputs.identity(), kept, durable=inputs.ends_durably)
    return result.with_seconds("store", perf_counter() - started)


def put(inputs: TrainingInputs, result: TrainingResult, parent: StoredModel | None) -> StoredModelInfo:
    """Put the finished training into model storage, as a child of `parent`. Then remove the files from which another attempt would resume.

    Args: result: result of the training, which is stored with the model.
    """
    request, model = inputs.request, inputs.model
    header = ModelHeader(
        run_id=request.run_id,
        trigger_id=request.trigger_id,
        model_class=model.id,
        model_config=model.config,
        model_storage=request.pipeline.get("model_storage") or {},
        training_result=result.to_mapping(),
        parent_id=parent.version.model_id if parent else None,
        model_definition=inputs.definition,
    )
    retrier = Retrier(RetryPolicy(inputs.context.put_limit_s, longest_pause_s=5.0))
    if result.feedback is not None:  # Sent before the model, because the next trigger may select as soon as the model is stored.
        send_scores(inputs, result.feedback, retrier)
    folder = inputs.context.folder
    optimizers = optimizers_path(folder, request.run_id, request.trigger_id)
    version = retrier.call(
        inputs.context.put_model, header, finished_path(folder, request), optimizers if optimizers.exists() else None
    )
    remove_outlived(inputs.context.folder, request)
    get_logger("training").info("stored", model_id=version.model_id, samples=result.counts.num_samples)
    return StoredModelInfo(version, model.id, model.config, result.to_mapping(), model_definition=inputs.definition)


def _result(inputs: TrainingInputs, training: Training) -> TrainingResult:
    """Return the result that is stored with the model. Waits for the device to read the losses."""
    progress, [losses] = training.progress, training.hooks_of(Losses)
    ignored, num_labels = count_ignored_labels(training)
    result = replace(
        sample_results(training),
        counts=TrainingCounts(
            num_samples=progress.samples,
            num_skipped=progress.skipped,
            num_batches=progress.batches,
            num_steps=progress.steps,
            skipped_steps=progress.skipped_steps,
            num_epochs=progress.epoch,
            num_keys=inputs.trigger_set.num_keys,
            ignored_labels=ignored or None,
            num_labels=num_labels if ignored else None,
        ),
        losses=TrainingLosses(
            losses.epochs[-1] if losses.epochs else None, tuple(losses.epochs), tuple(losses.validation), tuple(losses.read())
        ),
        seconds=dict(training.clock.seconds),
        device=inputs.config.device,
        warnings=tuple(learning_warnings(training, inputs.config)),
        bad_samples=_bad_samples(progress),
        cache=_cache_result(inputs, progress),
    )
    for record in training.hooks_of(DownsamplingRecord):
        result = replace(result, downsampling=record.result(training, inputs.num_candidates))
    scores: list[SampleScores | ChosenScores] = [*training.hooks_of(SampleScores), *training.hooks_of(ChosenScores)]
    for hook in scores:
        result = replace(result, feedback=hook.result(training))
    return result


def _cache_result(inputs: TrainingInputs, progress: TrainingProgress) -> CacheResult | None:
    if not any([*progress.cached.values(), *progress.cache_work.values()]):
        return None
    counts = ServedCounts.of(progress.samples + progress.unchosen, progress.cached, progress.cache_work)
    estimate = inputs.context.seconds_saved
    saved_s = None if estimate is None else estimate(inputs.trigger_set.dataset_identity, counts)
    return CacheResult(progress.cached, progress.cache_work, saved_s)


def _bad_samples(progress: TrainingProgress) -> tuple[BadSampleNote, ...]:
    return tuple(BadSampleNote(**sample) for sample in progress.bad_samples.values())


def configure_torch(config: TrainingConfig, *, deterministic: bool) -> None:
    """Choose the device of this process and, if `deterministic`, operations with reproducible results.

    Raises: ConfigError: the device does not exist.
    """
    if config.on_gpu:
        missing = missing_device(config.device)
        if missing:
            raise ConfigError(f"training.device: {missing}")
        # Code that uses the current GPU, such as the thread that page-locks batches, must not allocate memory on the first GPU.
        torch.cuda.set_device(torch.device(config.device).index or 0)
    # This is the default. Without a choice, PyTorch warns when an optimizer steps with a sparse gradient.
    torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
    if deterministic:
        # cuBLAS reads this variable once, before its first use.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # Operations without a deterministic version log a warning. Equal weights are guaranteed on a CPU only. use_deterministic_algorithms would
        # import PyTorch's compiler.
        torch.set_deterministic_debug_mode("warn")
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
