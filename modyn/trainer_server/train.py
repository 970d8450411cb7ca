"""What a worker does for one training: parent model, data, loop, and the finished model into model storage."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Protocol

import numpy as np
import torch

from modyn.config.base import load_section
from modyn.dataset.batch import Batch, on_device
from modyn.dataset.config import DataConfig
from modyn.dataset.connections import DatasetClients, DatasetConnector
from modyn.dataset.loader import BatchLoader
from modyn.dataset.order.plan import Position
from modyn.dataset.trigger_set import LoadOptions, TriggerSetDataset
from modyn.errors import ConfigError, CorruptStateError, InvalidArgumentError, NotFoundError, TrainingError
from modyn.model_storage.client import ModelHeader, ModelStorageClient, StoredModel
from modyn.models.build import build_model
from modyn.models.weights import load_weights, save_weights
from modyn.records import ModelVersion, RunId, TriggerSetInfo
from modyn.rpc.logs import bind, configure_logs, get_logger
from modyn.rpc.retry import Retrier, RetryPolicy
from modyn.selector.client import SelectorClient
from modyn.trainer_server.checkpoint import (
    Checkpoints,
    check_folder,
    load_checkpoint,
    read_state,
    restore,
    seed_everything,
    write_state,
)
from modyn.trainer_server.client import TrainingRequest
from modyn.trainer_server.components import build_criterion, build_optimizers, build_scaler, build_schedulers
from modyn.trainer_server.config import TrainingConfig
from modyn.trainer_server.downsampling import build_downsampling
from modyn.trainer_server.hooks import EarlyStopping, EpochLosses, LossLog, ProgressReports, Schedulers, StopRequests
from modyn.trainer_server.jobs import (
    Trained,
    TrainingJob,
    checkpoint_path,
    optimizers_path,
    remove,
    remove_outlived,
    scratch_dir,
)
from modyn.trainer_server.loop import Clock, Hook, Parts, Training
from modyn.trainer_server.plan import TrainingPlan
from modyn.workers import Report
from modyn.workers.devices import missing_device

PUT_PATIENCE_S: Final = 300.0
"""How long a finished training waits for a model storage that does not answer."""

_WEIGHTS, _TRAINING = 1, 2
"""Purposes of seeds."""


class TriggerSets(Protocol):
    """The part of a SelectorClient that is used here."""

    def trigger_set(self, run_id: RunId, trigger_id: int) -> TriggerSetInfo: ...


class Models(Protocol):
    """The part of a ModelStorageClient that is used here."""

    def get(self, model_id: int, into: Path) -> StoredModel: ...

    def put(self, header: ModelHeader, safetensors_path: Path) -> ModelVersion: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a training reaches of the outside. folder: where it keeps files. connect: makes the dataset's clients."""

    trigger_sets: TriggerSets
    models: Models
    connect: Callable[[], DatasetClients]
    folder: Path


@dataclass(frozen=True, slots=True)
class TrainingLog:
    """What is remembered of the losses."""

    losses: LossLog
    epoch_losses: EpochLosses


@dataclass(frozen=True)
class Task:
    """One training as it was asked for."""

    request: TrainingRequest
    config: TrainingConfig
    around: Surroundings
    trigger_set: TriggerSetInfo

    @cached_property
    def plan(self) -> TrainingPlan:
        return TrainingPlan(
            num_keys=self.trigger_set.num_keys,
            batch_size=self.config.batch_size,
            drop_last=self.config.drop_last_batch,
            epochs=self.config.epochs_per_trigger,
            max_samples=self.request.num_samples_to_pass or self.config.samples_to_pass(self.request.trigger_id),
            accumulation=self.config.gradient_accumulation_steps,
        )

    @property
    def asked_seed(self) -> int | None:
        return self.request.seed if self.request.seed is not None else self.config.seed

    @property
    def selection(self) -> Mapping[str, Any]:
        return self.request.pipeline.get("selection_strategy") or {}

    @property
    def checkpoint_path(self) -> Path:
        return checkpoint_path(self.around.folder, self.request)

    def optimizers_path(self, trigger_id: int) -> Path:
        return optimizers_path(self.around.folder, self.request.run_id, trigger_id)

    def identity(self) -> dict[str, Any]:
        """What two attempts at one training have in common, and no two trainings."""
        request = self.request
        sections = {name: request.pipeline.get(name) for name in ("model", "training", "data", "selection_strategy")}
        asked = [sections, request.parent_model_id, request.num_samples_to_pass, request.seed]
        return {
            "run_id": str(request.run_id),
            "trigger_id": request.trigger_id,
            "request_sha256": hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest(),
            "keys_checksum": self.trigger_set.keys_checksum,
        }


def train(job: TrainingJob, report: Report) -> Trained:
    """Task of a worker process."""
    config, request = job.config, job.request
    configure_logs("trainer_worker", config.trainer_server.log_level)
    with (
        bind(run_id=request.run_id, trigger_id=request.trigger_id),
        closing(SelectorClient(config.endpoint("selector"))) as selector,
        closing(ModelStorageClient(config.endpoint("model_storage"))) as models,
    ):
        training = load_section(TrainingConfig, request.pipeline["training"], "training")
        connect = DatasetConnector.of(config, request.pipeline["data"]["dataset_id"], training.parallel_prefetch_requests)
        return run_training(request, Surroundings(selector, models, connect, config.service_dir("trainer_server")), report)


def run_training(request: TrainingRequest, around: Surroundings, report: Report) -> Trained:
    """Train what `request` asks for and store it. Goes on from a checkpoint of the same training if there is one."""
    config = load_section(TrainingConfig, request.pipeline["training"], "training")
    if config.checkpointing.activated:
        check_folder(checkpoint_path(around.folder, request).parent)
    with _parent_on_its_way(request, config, around) as parent_weights:
        trigger_set = around.trigger_sets.trigger_set(request.run_id, request.trigger_id)
        if trigger_set.num_keys == 0:
            raise InvalidArgumentError(
                "the trigger set is empty, there is nothing to train on: see that the selection strategy leaves samples, and that the "
                "trigger does not fire without new ones"
            )
        task = Task(request, config, around, trigger_set)
        checkpoint = load_checkpoint(task.checkpoint_path, task.identity()) if config.checkpointing.activated else None
        # Without a seed one is drawn, so that a training which goes on after a crash serves its samples in the order in which it began.
        seed = checkpoint["seed"] if checkpoint else task.asked_seed if task.asked_seed is not None else secrets.randbits(62)
        _prepare(config, deterministic=task.asked_seed is not None)
        seed_everything(derived_seed(seed, request.trigger_id, _WEIGHTS))
        parent = parent_weights()
        model = _initial_model(task, parent)
    parts = _parts(task, model)
    if config.keep_optimizer_state and parent is not None:
        _take_over_optimizers(task, parts, parent.version)
    log = TrainingLog(LossLog(config.record_loss_every), EpochLosses())
    training = Training(parts, task.plan, _hooks(task, log, report, seed), _clock(task))
    _run(task, training, seed, checkpoint)
    return _store(task, parts, parent, _result(task, training, log))


def derived_seed(seed: int, trigger_id: int, purpose: int) -> int:
    """63 bits that depend on nothing but the arguments."""
    high, low = np.random.SeedSequence([seed, trigger_id, purpose]).generate_state(2, np.uint32).tolist()
    return (int(high) << 31) | (int(low) >> 1)


def _run(task: Task, training: Training, seed: int, checkpoint: Mapping[str, Any] | None) -> None:
    """Train from the beginning, or from the checkpoint on."""
    logger = get_logger("training")
    plan, trigger_id = task.plan, task.request.trigger_id
    if not plan.num_batches:
        logger.warning("nothing_to_train", num_keys=plan.num_keys, batch_size=plan.batch_size, drop_last_batch=plan.drop_last)
    at = checkpoint["progress"] if checkpoint else {"epoch": 0, "batches_in_epoch": 0}
    dataset = _dataset(task, seed, Position(at["epoch"], at["batches_in_epoch"]))
    with BatchLoader(dataset, task.config.dataloader_workers, pin_memory=task.config.on_gpu) as loader:
        batches = _begun(on_device(iter(loader), task.config.device))
        # Only now: starting to load draws random numbers, how many depends on the number of workers.
        seed_everything(derived_seed(seed, trigger_id, _TRAINING))
        if checkpoint is not None:
            restore(training, checkpoint)
            logger.info("resumed", batches=training.progress.batches)
        training.clock.lap("load")
        training.run(batches)


def _hooks(task: Task, log: TrainingLog, report: Report, seed: int) -> list[Hook]:
    """In the order in which they are called: checkpoints last, so that they hold what the others have changed."""
    config = task.config
    hooks: list[Hook] = [StopRequests(report), log.epoch_losses]
    if config.record_loss_every:
        hooks.append(log.losses)
    if config.lr_scheduler:
        hooks.append(Schedulers(config.lr_scheduler.step_every))
    if config.early_stopping:
        hooks.append(EarlyStopping(config.early_stopping))
    hooks.append(ProgressReports(report))
    if config.checkpointing.activated:
        hooks.append(Checkpoints(task.checkpoint_path, config.checkpointing.interval, task.identity(), seed))
    return hooks


def _clock(task: Task) -> Clock:
    return Clock(torch.device(task.config.device) if task.config.enable_accurate_gpu_measurements else None)


def _result(task: Task, training: Training, log: TrainingLog) -> dict[str, Any]:
    """What is stored with the model. Reading the losses waits for the device, for the first time if nobody watched."""
    progress = training.progress
    return {
        "num_samples": progress.samples,
        "num_batches": progress.batches,
        "num_steps": progress.steps,
        "num_epochs": progress.epoch,
        "num_keys": task.trigger_set.num_keys,
        "loss": log.epoch_losses.losses[-1] if log.epoch_losses.losses else None,
        "epoch_losses": log.epoch_losses.losses,
        "losses": log.losses.read(),
        "seconds": dict(training.clock.seconds),
        "device": task.config.device,
    }


def _prepare(config: TrainingConfig, *, deterministic: bool) -> None:
    """Settings of PyTorch for this process."""
    if config.on_gpu:
        missing = missing_device(config.device)
        if missing:
            raise ConfigError(f"training.device: {missing}")
        # What asks for "the" GPU, such as the thread that page-locks batches, is to find this one, not to take memory of the first.
        torch.cuda.set_device(torch.device(config.device).index or 0)
    if deterministic:
        # cuBLAS reads this once, before its first use.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # An operation that has no deterministic form is told in the log; the seed promises equal weights on CPU only.
        # The same as use_deterministic_algorithms(True, warn_only=True), which imports PyTorch's compiler: that takes seconds.
        torch.set_deterministic_debug_mode("warn")
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def _parent_on_its_way(
    request: TrainingRequest, config: TrainingConfig, around: Surroundings
) -> Iterator[Callable[[], StoredModel | None]]:
    """Fetches the model to start from while the training is prepared; call what is given to wait for it. None: initial weights.
    Its file is gone when the block ends."""
    parent_id = request.parent_model_id
    if parent_id is None and config.initial_model == "pretrained":
        parent_id = config.initial_model_id
    if parent_id is None:
        yield lambda: None
        return
    into = _weights_path(request, around, "parent")
    with ThreadPoolExecutor(1, thread_name_prefix="parent") as fetching:
        stored = fetching.submit(around.models.get, parent_id, into)
        try:
            yield stored.result
        except NotFoundError as error:
            if stored.done() and stored.exception() is error:
                raise NotFoundError(f"the model to start from does not exist: {error.message}") from error
            raise
        finally:
            wait([stored])
            remove(into)


def _initial_model(task: Task, parent: StoredModel | None) -> torch.nn.Module:
    """The network on its device, with the weights of the parent if there is one."""
    section = task.request.pipeline["model"]
    model = build_model(section["id"], section.get("config") or {})
    if parent is not None:
        load_weights(model, parent.path)
    return model.to(task.config.device)


def _weights_path(request: TrainingRequest, around: Surroundings, kind: str) -> Path:
    folder = scratch_dir(around.folder, request)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{kind}.safetensors"


def _parts(task: Task, model: torch.nn.Module) -> Parts:
    config, plan = task.config, task.plan
    optimizers = build_optimizers(model, config.optimizers)
    return Parts(
        model=model,
        optimizers=optimizers,
        schedulers=build_schedulers(config.lr_scheduler, optimizers, num_batches=plan.num_steps, num_epochs=plan.num_epochs),
        scaler=build_scaler(config),
        criterion=build_criterion(config.optimization_criterion, weighted=bool(task.selection.get("uses_weights", False))),
        downsampling=build_downsampling(task.selection),
        device=torch.device(config.device),
        amp=config.amp,
        clip_norm=config.gradient_clip_norm,
        compiled=torch.compile(model) if config.compile else None,  # type: ignore[arg-type]
    )


def _dataset(task: Task, seed: int, position: Position) -> TriggerSetDataset:
    config = task.config
    options = LoadOptions(
        batch_size=config.batch_size,
        drop_last=config.drop_last_batch,
        shuffle=config.shuffle,
        seed=seed,
        epochs=task.plan.num_epochs,
        num_prefetched_partitions=config.num_prefetched_partitions,
        parallel_prefetch_requests=config.parallel_prefetch_requests,
    )
    data = load_section(DataConfig, task.request.pipeline["data"], "data")
    return TriggerSetDataset(task.trigger_set, data, task.around.connect, options, position)


def _begun(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches, the first of which is here already."""
    first = next(batches, None)
    return iter(()) if first is None else chain((first,), batches)


def _store(task: Task, parts: Parts, parent: StoredModel | None, result: dict[str, Any]) -> Trained:
    """Save the weights first of all; then the optimizers, so that whoever sees the model finds what belongs to it; then put it.
    The checkpoint goes last: until the model is stored it is what a next attempt starts from."""
    started = perf_counter()
    request, path = task.request, _weights_path(task.request, task.around, "trained")
    try:
        save_weights(parts.model, path)
        if task.config.keep_optimizer_state:
            states = {name: optimizer.state_dict() for name, optimizer in parts.optimizers.items()}
            write_state(task.optimizers_path(request.trigger_id), {"version": 1, "optimizers": states})
        result["seconds"]["store"] = perf_counter() - started
        section = request.pipeline["model"]
        header = ModelHeader(
            run_id=request.run_id,
            trigger_id=request.trigger_id,
            model_class=section["id"],
            model_config=section.get("config") or {},
            model_storage=request.pipeline.get("model_storage") or {},
            training_result=result,
            parent_id=parent.version.model_id if parent else None,
        )
        version = _put(task.around.models, header, path)
    finally:
        remove(path)
    remove_outlived(task.around.folder, request)
    get_logger("training").info("stored", model_id=version.model_id, samples=result["num_samples"])
    return Trained(version.model_id, version.weights_sha256, result)


def _put(models: Models, header: ModelHeader, path: Path) -> ModelVersion:
    return Retrier(RetryPolicy(PUT_PATIENCE_S, longest_pause_s=5.0)).call(models.put, header, path)


def _take_over_optimizers(task: Task, parts: Parts, parent: ModelVersion) -> None:
    """Moments and counters of the parent's optimizers; learning rates and other options are those of the configuration, since
    schedulers start anew. A parent of another run (a pretrained model) brings none."""
    if parent.run_id != task.request.run_id:
        return
    path = task.optimizers_path(parent.trigger_id)
    if not path.exists():
        raise TrainingError(
            f"training.keep_optimizer_state: the optimizers of trigger {parent.trigger_id} were not kept here ({path} does not exist); "
            "set it to false, or start a new run"
        )
    saved = read_state(path)["optimizers"]
    for name, optimizer in parts.optimizers.items():
        options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        try:
            optimizer.load_state_dict(saved[name])
        except (KeyError, ValueError) as error:
            raise CorruptStateError(
                f"{path} does not fit optimizer '{name}': {error}; it was written for another pipeline"
            ) from error
        for group, own in zip(optimizer.param_groups, options, strict=True):
            group.update(own)
