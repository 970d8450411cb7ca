"""The task of a training worker: fetch the parent model, build, fit, store."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import chain
from typing import Any, Final

import torch

from modyn.config.base import load_section
from modyn.dataset.batch import Batch, on_device
from modyn.dataset.connections import DatasetConnector
from modyn.dataset.loader import BatchLoader
from modyn.dataset.order.plan import Position
from modyn.errors import InvalidArgumentError
from modyn.model_storage.client import ModelStorageClient
from modyn.rpc.logs import bind, configure_logs, get_logger
from modyn.selector.client import SelectorClient
from modyn.trainer_server.build import (
    TrainingContext,
    TrainingInputs,
    build_components,
    build_dataset,
    build_hooks,
    configure_torch,
    derived_seed,
    initial_model,
)
from modyn.trainer_server.checkpoint import check_folder, load_checkpoint, restore, seed_everything
from modyn.trainer_server.config import TrainingConfig
from modyn.trainer_server.files import checkpoint_path
from modyn.trainer_server.hooks import Losses
from modyn.trainer_server.loop import Clock, Training
from modyn.trainer_server.request import Trained, TrainingJob, TrainingRequest
from modyn.trainer_server.store import fetch_parent, store_model, take_over_optimizers
from modyn.workers import Report

_WEIGHTS, _TRAINING = 1, 2
"""Purposes of seeds."""
_START: Final[Mapping[str, int]] = {"epoch": 0, "batches_in_epoch": 0}


def train(job: TrainingJob, report: Report) -> Trained:
    """Task of a worker process: connect to the services and train."""
    config, request = job.config, job.request
    configure_logs("trainer_worker", config.trainer_server.log_level)
    with (
        bind(run_id=request.run_id, trigger_id=request.trigger_id),
        closing(SelectorClient(config.endpoint("selector"))) as selector,
        closing(ModelStorageClient(config.endpoint("model_storage"))) as models,
    ):
        training = load_section(TrainingConfig, request.pipeline["training"], "training")
        connect = DatasetConnector.of(config, request.pipeline["data"]["dataset_id"], training.parallel_prefetch_requests)
        folder = config.service_dir("trainer_server")
        return run_training(request, TrainingContext(selector.trigger_set, models.get, models.put, connect, folder), report)


def run_training(request: TrainingRequest, context: TrainingContext, report: Report) -> Trained:
    """Train what `request` asks for and store it. Goes on from a checkpoint of the same training if there is one."""
    config = load_section(TrainingConfig, request.pipeline["training"], "training")
    if config.checkpointing.activated:
        check_folder(checkpoint_path(context.folder, request).parent)
    with fetch_parent(request, config, context) as fetched_parent:
        trigger_set = context.trigger_set(request.run_id, request.trigger_id)
        if trigger_set.num_keys == 0:
            raise InvalidArgumentError(
                "the trigger set is empty, there is nothing to train on: see that the selection strategy leaves samples, and that the "
                "trigger does not fire without new ones"
            )
        inputs = TrainingInputs(request, config, context, trigger_set)
        checkpoint = load_checkpoint(inputs.checkpoint_path, inputs.identity()) if config.checkpointing.activated else None
        # Without a seed one is drawn and kept in the checkpoint: a training that goes on after a crash keeps the order of its samples.
        requested = inputs.requested_seed
        seed = checkpoint["seed"] if checkpoint else requested if requested is not None else secrets.randbits(62)
        configure_torch(config, deterministic=requested is not None)
        seed_everything(derived_seed(seed, request.trigger_id, _WEIGHTS))
        parent = fetched_parent()
        model = initial_model(inputs, parent)
    components = build_components(inputs, model)
    if config.keep_optimizer_state and parent is not None:
        take_over_optimizers(inputs, components, parent.version)
    losses = Losses(config.record_loss_every)
    clock = Clock(torch.device(config.device) if config.enable_accurate_gpu_measurements else None)
    training = Training(components, inputs.plan, build_hooks(inputs, losses, report, seed), clock)
    _fit(inputs, training, seed, checkpoint)
    return store_model(inputs, components, parent, _result(inputs, training, losses))


def _fit(inputs: TrainingInputs, training: Training, seed: int, checkpoint: Mapping[str, Any] | None) -> None:
    """Train from the beginning, or from the checkpoint on."""
    logger, plan = get_logger("training"), inputs.plan
    if not plan.num_batches:
        logger.warning("nothing_to_train", num_keys=plan.num_keys, batch_size=plan.batch_size, drop_last_batch=plan.drop_last)
    at = checkpoint["progress"] if checkpoint else _START
    dataset = build_dataset(inputs, seed, Position(at["epoch"], at["batches_in_epoch"]))
    with BatchLoader(dataset, inputs.config.dataloader_workers, pin_memory=inputs.config.on_gpu) as loader:
        batches = _prefetch_first(on_device(iter(loader), inputs.config.device))
        # Only now: starting to load draws random numbers, how many depends on the number of workers.
        seed_everything(derived_seed(seed, inputs.request.trigger_id, _TRAINING))
        if checkpoint is not None:
            restore(training, checkpoint)
            logger.info("resumed", batches=training.progress.batches)
        training.clock.lap("load")
        training.run(batches)


def _prefetch_first(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches; waits for the first one."""
    first = next(batches, None)
    return iter(()) if first is None else chain((first,), batches)


def _result(inputs: TrainingInputs, training: Training, losses: Losses) -> dict[str, Any]:
    """What is stored with the model. Reading the losses waits for the device."""
    progress = training.progress
    return {
        "num_samples": progress.samples,
        "num_batches": progress.batches,
        "num_steps": progress.steps,
        "num_epochs": progress.epoch,
        "num_keys": inputs.trigger_set.num_keys,
        "loss": losses.epochs[-1] if losses.epochs else None,
        "epoch_losses": losses.epochs,
        "losses": losses.read(),
        "seconds": dict(training.clock.seconds),
        "device": inputs.config.device,
    }
