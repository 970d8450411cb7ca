"""The task of a training worker: fetch the parent model, build, fit, store. Imports torch: for workers only."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from functools import partial
from time import perf_counter
from typing import Any, Final

import torch

from modyn.cache.served_counts import ServedCounts
from modyn.config.base import load_section
from modyn.config.online import ONLINE
from modyn.config.system import SystemConfig
from modyn.dataset.connections import DatasetSource
from modyn.dataset.pipeline_cache import cache_settings, training_cache
from modyn.dataset.session_connections import SessionConnections, SessionSource
from modyn.errors import ConfigError, InvalidArgumentError, NotFoundError
from modyn.model_storage.client import ModelHeader, StoredModel, StoredModelInfo
from modyn.models.weights import save_weights
from modyn.rpc.logs import bind, configure_logs, get_logger
from modyn.rpc.retry import Retrier, RetryPolicy
from modyn.storage.client import StorageClient
from modyn.trainer_server.checkpoint import (
    check_checkpoint_folder,
    derived_seed,
    load_checkpoint,
    seed_everything,
)
from modyn.trainer_server.chosen_scores import ChosenScores
from modyn.trainer_server.client import NOTHING_TRAINED, NothingTrained, TrainingJob, TrainingRequest
from modyn.trainer_server.config import TrainingConfig
from modyn.trainer_server.downsampling_record import DownsamplingRecord
from modyn.trainer_server.ends import end_diverged, end_tested, end_unlearned, end_without_model, nothing_trained, of_samples
from modyn.trainer_server.files import (
    checkpoint_path,
    find_finished,
    finished_path,
    keep_finished,
    optimizers_path,
    remove,
    remove_outlived,
    scratch_dir,
)
from modyn.trainer_server.fitting import build, fit
from modyn.trainer_server.hooks import DivergedError, Losses, check_weights
from modyn.trainer_server.inputs import TrainingContext, TrainingInputs
from modyn.trainer_server.irreducible import TooLittleHeldOutError, prepare_downsampling
from modyn.trainer_server.learning import NothingLearnedError, check_learned, learning_result
from modyn.trainer_server.loop import Training
from modyn.trainer_server.online_steps import config_of_steps, section_of_steps
from modyn.trainer_server.optimizer_states import keep_optimizers
from modyn.trainer_server.rate_keeping import keep_rates, seconds_saved
from modyn.trainer_server.sample_scores import SampleScores, send_scores
from modyn.trainer_server.stream_preprocessing import statistics_of
from modyn.trainer_server.training_progress import TrainingProgress
from modyn.trainer_server.validation_pass import Validation
from modyn.workers import JobConnection
from modyn.workers.devices import missing_device

_WEIGHTS: Final = 1
"""Purpose of a seed; others are where they are used."""


def train(job: TrainingJob, connection: JobConnection) -> StoredModelInfo | NothingTrained:
    """Task of a worker process: connect to the services and train what `job` asks for; `connection` is the one to the trainer server."""
    config, request = job.config, job.request
    connection.send({})  # The training runs from now on, and no longer waits in line.
    configure_logs("trainer_worker", config.trainer_server.log_level)
    if request.pipeline.get(ONLINE) is not None:
        give_way(config.trainer_server.online_niceness)
    with bind(run_id=request.run_id, trigger_id=request.trigger_id):
        training = load_section(TrainingConfig, request.pipeline["training"], "training")
        source = dataset_source(config, request.pipeline, training)
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
            keep_times=partial(keep_rates, config, request.pipeline),
            seconds_saved=partial(seconds_saved, config, request.pipeline),
        )
        return run_training(request, context, connection)


def give_way(niceness: int) -> None:
    """Let other processes of the machine go before this one, for its whole life: what is waited for more is computed there."""
    os.nice(max(0, niceness - os.nice(0)))


def dataset_source(config: SystemConfig, pipeline: Mapping[str, Any], training: TrainingConfig) -> DatasetSource:
    """Return the dataset of a pipeline, with its cache if it has one."""
    name, cache = pipeline["data"]["dataset_id"], None
    if cache_settings(config, pipeline).size is not None:
        with StorageClient(config.endpoint("storage")) as storage:
            cache = training_cache(config, pipeline, storage.dataset(name))
    return DatasetSource(config, name, training.parallel_prefetch_requests, cache)


def run_training(
    request: TrainingRequest, context: TrainingContext, connection: JobConnection
) -> StoredModelInfo | NothingTrained:
    """Train what `request` asks for and store it. Goes on from a checkpoint of the same training if there is one.

    Raises: InvalidArgumentError: the trigger set is empty. ConfigError, UserCodeError, DataError, TrainingError: it cannot train.
    """
    config = load_section(TrainingConfig, request.pipeline["training"], "training")
    if request.online:
        config = config_of_steps(config, section_of_steps(request))
    if config.device == "cuda":
        config = config.model_copy(update={"device": connection.device})
    if config.checkpointing.activated:
        check_checkpoint_folder(checkpoint_path(context.folder, request).parent)
    with fetch_parent(request, config, context) as fetched_parent:
        trigger_set = context.trigger_set(request.run_id, request.trigger_id)
        if trigger_set.num_keys == 0:
            raise InvalidArgumentError(
                "the trigger set is empty, there is nothing to train on: see that the selection strategy leaves samples, and that the "
                "trigger does not fire without new ones"
            )
        inputs = TrainingInputs(request, config, context, trigger_set)
        if (ended := _ended_before(inputs, fetched_parent)) is not None:
            return ended
        path = checkpoint_path(context.folder, request)
        checkpoint = load_checkpoint(path, inputs.identity()) if config.checkpointing.activated else None
        # Without a seed one is drawn and kept in the checkpoint: a training that goes on after a crash keeps the order of its samples.
        seed = checkpoint["seed"] if checkpoint else inputs.seed if inputs.seed is not None else secrets.randbits(62)
        configure_torch(config, deterministic=inputs.seed is not None)
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
        return end_without_model(inputs, reason, **training.progress.listed_bad_samples())
    return put(inputs, finish(inputs, training), parent)


def _ended_before(
    inputs: TrainingInputs, fetched_parent: Callable[[], StoredModel | None]
) -> StoredModelInfo | NothingTrained | None:
    """The end of a training that an earlier attempt has finished, or that has no batch; None: it is still to be made."""
    if not inputs.plan.num_batches:
        return nothing_trained(inputs, inputs.no_batch())
    request, folder = inputs.request, inputs.context.folder
    optimizers = optimizers_path(folder, request.run_id, request.trigger_id)
    result = find_finished(finished_path(folder, request), inputs.identity(), optimizers)
    if result is None:
        return None
    if NOTHING_TRAINED in result:
        return NothingTrained(result[NOTHING_TRAINED], result)
    get_logger("training").info("finished_before", reason="only the put to model storage is repeated")
    return put(inputs, result, fetched_parent())


@contextmanager
def fetch_parent(
    request: TrainingRequest, config: TrainingConfig, context: TrainingContext
) -> Iterator[Callable[[], StoredModel | None]]:
    """Fetch the model that `request`, else `config`, starts from while the block runs, into a scratch file.

    Yields a call that waits for it and returns None for initial weights, or raises NotFoundError. The file goes when the block ends.
    """
    parent_id = request.parent_model_id
    if parent_id is None and config.initial_model == "pretrained":
        parent_id = config.initial_model_id
    if parent_id is None:
        yield lambda: None
        return
    folder = scratch_dir(context.folder, request)
    folder.mkdir(parents=True, exist_ok=True)
    into = folder / "parent.safetensors"
    with ThreadPoolExecutor(1, thread_name_prefix="parent") as fetching:
        stored = fetching.submit(context.get_model, parent_id, into)
        try:
            yield stored.result
        except NotFoundError as error:
            if stored.done() and stored.exception() is error:
                raise NotFoundError(f"the model to start from does not exist: {error.message}") from error
            raise
        finally:
            # The thread writes the file: it must have ended before the file is removed.
            wait([stored])
            remove(into)


def finish(inputs: TrainingInputs, training: Training) -> dict[str, Any]:
    """Write weights and result of a training to the trainer's folder: if model storage cannot be reached, the next attempt finds them there.

    The optimizers' states are written first, so that they exist once the model does. A failure of that is logged and noted in the result.

    Returns: the result. Raises: TrainingError: the weights cannot be written.
    """
    result, started = _result(inputs, training), perf_counter()
    request, folder = inputs.request, inputs.context.folder
    if inputs.keeps_optimizers:
        result |= keep_optimizers(inputs, training.components)
    save = partial(save_weights, training.components.model, statistics=statistics_of(training))
    optimizers = optimizers_path(folder, request.run_id, request.trigger_id)
    beside = optimizers if optimizers.exists() else None
    result = keep_finished(finished_path(folder, request), save, result, inputs.identity(), beside, durable=inputs.ends_durably)
    result["seconds"]["store"] = perf_counter() - started
    return result


def put(inputs: TrainingInputs, result: dict[str, Any], parent: StoredModel | None) -> StoredModelInfo:
    """Put the finished training into model storage, as a child of `parent`; then remove what the next attempt would go on from.

    Args: result: of the training, stored with the model.
    """
    request, section = inputs.request, inputs.request.pipeline["model"]
    header = ModelHeader(
        run_id=request.run_id,
        trigger_id=request.trigger_id,
        model_class=section["id"],
        model_config=section.get("config") or {},
        model_storage=request.pipeline.get("model_storage") or {},
        training_result=result,
        parent_id=parent.version.model_id if parent else None,
    )
    retrier = Retrier(RetryPolicy(inputs.context.put_limit_s, longest_pause_s=5.0))
    if "feedback" in result:  # Before the model: once that is there, the next trigger selects.
        send_scores(inputs, result, retrier)
    folder = inputs.context.folder
    optimizers = optimizers_path(folder, request.run_id, request.trigger_id)
    version = retrier.call(
        inputs.context.put_model, header, finished_path(folder, request), optimizers if optimizers.exists() else None
    )
    remove_outlived(inputs.context.folder, request)
    get_logger("training").info("stored", model_id=version.model_id, samples=result["num_samples"])
    return StoredModelInfo(version, section["id"], section.get("config") or {}, result)


def _of_cache(inputs: TrainingInputs, progress: TrainingProgress) -> dict[str, Any]:
    """What the result says of the cache; nothing where none took part."""
    if not any([*progress.cached.values(), *progress.cache_work.values()]):
        return {}
    found: dict[str, Any] = {"num_cached": progress.cached, "cache_work": progress.cache_work}
    counts = ServedCounts.of(progress.samples + progress.unchosen, progress.cached, progress.cache_work)
    estimate = inputs.context.seconds_saved
    saved_s = None if estimate is None else estimate(inputs.trigger_set.dataset_identity, counts)
    return found if saved_s is None else {**found, "cache_saved_s": saved_s}


def _result(inputs: TrainingInputs, training: Training) -> dict[str, Any]:
    """What is stored with the model. Reading the losses waits for the device."""
    progress, losses = training.progress, next(hook for hook in training.hooks if isinstance(hook, Losses))
    return {
        "num_samples": progress.samples,
        "num_skipped": progress.skipped,
        **_of_cache(inputs, progress),
        **progress.listed_bad_samples(),
        "num_batches": progress.batches,
        "num_steps": progress.steps,
        **learning_result(training, inputs.config),
        "num_epochs": progress.epoch,
        "num_keys": inputs.trigger_set.num_keys,
        "loss": losses.epochs[-1] if losses.epochs else None,
        "epoch_losses": losses.epochs,
        **({"validation_losses": losses.validation} if inputs.held_out else {}),
        "losses": losses.read(),
        "seconds": dict(training.clock.seconds),
        "device": inputs.config.device,
        **of_samples(training),
        **{
            hook.name: found
            for hook in training.hooks
            if isinstance(hook, DownsamplingRecord | SampleScores | ChosenScores)
            and (found := hook.result(training, inputs.num_candidates))
        },
    }


def configure_torch(config: TrainingConfig, *, deterministic: bool) -> None:
    """Choose the device of this process, and operations that give equal results each time if `deterministic`.

    Raises: ConfigError: the device does not exist.
    """
    if config.on_gpu:
        missing = missing_device(config.device)
        if missing:
            raise ConfigError(f"training.device: {missing}")
        # Code that asks for the current GPU, such as the thread that page-locks batches, must not take memory of the first one.
        torch.cuda.set_device(torch.device(config.device).index or 0)
    if deterministic:
        # cuBLAS reads this once, before its first use.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # Others log a warning: equal weights are promised on CPU only. use_deterministic_algorithms would import PyTorch's compiler.
        torch.set_deterministic_debug_mode("warn")
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
